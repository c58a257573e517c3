// Package noticetest makes the requests that forges send, in the shapes their documentation
// gives: headers, bodies and signatures, each signed as its forge does it and not by the code
// that reads them.
package noticetest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

//go:embed payloads/*.json
var payloads embed.FS

// Addresses are what a forge calls a repository.
type Addresses struct{ Clone, SSH, HTML string }

// Of gives an address in the place of all three.
func Of(address string) Addresses {
	return Addresses{Clone: address, SSH: address, HTML: strings.TrimSuffix(address, ".git")}
}

// Delivery is a request of a forge.
type Delivery struct {
	Header http.Header
	Body   []byte
}

// Request posts the delivery to an address.
func (d Delivery) Request(ctx context.Context, address string) *http.Request {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(d.Body))
	if err != nil {
		panic(err)
	}
	request.Header = d.Header.Clone()
	return request
}

// Pushes are all forms in which a push is told, by name.
func Pushes(a Addresses, secret string) map[string]Delivery {
	return map[string]Delivery{
		"github":           GitHub("push", a, secret),
		"github form":      githubForm(a, secret),
		"gitlab token":     GitLab(a, secret),
		"gitlab signed":    gitlabSigned(a, secret, false),
		"gitlab both":      gitlabSigned(a, secret, true),
		"gitea":            gitea("Gitea", a, secret),
		"forgejo":          gitea("Forgejo", a, secret),
		"gitea form":       giteaForm(a, secret),
		"generic":          Generic(a.Clone, secret),
		"generic standard": genericStandard(a.Clone, secret),
	}
}

// GitHub is an event of GitHub's.
func GitHub(event string, a Addresses, secret string) Delivery {
	d := delivery("application/json", payload("github-"+event, a),
		"User-Agent", "GitHub-Hookshot/760256b", "X-GitHub-Event", event, "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID", "292430182")
	d.Header.Set("X-Hub-Signature-256", "sha256="+mac([]byte(secret), d.Body))
	return d
}

// githubForm is signed over the form.
func githubForm(a Addresses, secret string) Delivery {
	d := form(GitHub("push", a, secret))
	d.Header.Set("X-Hub-Signature-256", "sha256="+mac([]byte(secret), d.Body))
	return d
}

// GitLab is a push of GitLab's with its secret token.
func GitLab(a Addresses, secret string) Delivery {
	return delivery("application/json", payload("gitlab-push", a),
		"User-Agent", "GitLab/18.2.0", "X-Gitlab-Event", "Push Hook", "X-Gitlab-Instance", "https://forge.example",
		"X-Gitlab-Webhook-UUID", "13792a34-cac6-4fda-95a8-c58e00a3954e", "Idempotency-Key", "f5e57e6a-0b2b-4f4e-b0a0-8c4c5f4b2a10", "X-Gitlab-Token", secret)
}

func gitlabSigned(a Addresses, secret string, token bool) Delivery {
	d := GitLab(a, secret)
	if !token {
		d.Header.Del("X-Gitlab-Token")
	}
	return standard(d, secret)
}

// gitea is a push of Gitea's or Forgejo's; each sends the headers of those it came from too.
func gitea(name string, a Addresses, secret string) Delivery {
	d := delivery("application/json", payload("gitea-push", a))
	for _, prefix := range []string{name, "Gitea", "Gogs", "GitHub"} {
		d.Header.Set("X-"+prefix+"-Event", "push")
		d.Header.Set("X-"+prefix+"-Event-Type", "push")
		d.Header.Set("X-"+prefix+"-Delivery", "f6266f16-1bf3-46a5-9ea4-602e06ead473")
	}
	signature := mac([]byte(secret), d.Body)
	d.Header.Set("X-"+name+"-Signature", signature)
	d.Header.Set("X-Gitea-Signature", signature)
	d.Header.Set("X-Gogs-Signature", signature)
	d.Header.Set("X-Hub-Signature-256", "sha256="+signature)
	return d
}

// giteaForm keeps the signature over the JSON.
func giteaForm(a Addresses, secret string) Delivery { return form(gitea("Gitea", a, secret)) }

// Generic is what a script sends.
func Generic(address, secret string) Delivery {
	body, err := json.Marshal(map[string]string{"repository": address})
	if err != nil {
		panic(err)
	}
	d := delivery("application/json", body)
	d.Header.Set("X-Hub-Signature-256", "sha256="+mac([]byte(secret), body))
	return d
}

func genericStandard(address, secret string) Delivery {
	d := Generic(address, secret)
	d.Header.Del("X-Hub-Signature-256")
	return standard(d, secret)
}

// standard signs as Standard Webhooks does: with the bytes that stand in base64 behind "whsec_".
func standard(d Delivery, secret string) Delivery {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		panic(err)
	}
	const id, at = "f5e57e6a-0b2b-4f4e-b0a0-8c4c5f4b2a10", "1772616057"
	signature, err := hex.DecodeString(mac(key, []byte(id+"."+at+"."+string(d.Body))))
	if err != nil {
		panic(err)
	}
	d.Header.Set("webhook-id", id)
	d.Header.Set("webhook-timestamp", at)
	d.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(signature))
	return d
}

func form(d Delivery) Delivery {
	d.Body = []byte(url.Values{"payload": {string(d.Body)}}.Encode())
	d.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return d
}

func delivery(contentType string, body []byte, header ...string) Delivery {
	d := Delivery{Header: http.Header{"Content-Type": {contentType}}, Body: body}
	for pair := range slices.Chunk(header, 2) {
		d.Header.Set(pair[0], pair[1])
	}
	return d
}

func payload(name string, a Addresses) []byte {
	text, err := payloads.ReadFile("payloads/" + name + ".json")
	if err != nil {
		panic(err)
	}
	return []byte(strings.NewReplacer("@CLONE@", a.Clone, "@SSH@", a.SSH, "@HTML@", a.HTML).Replace(string(text)))
}

func mac(key, message []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write(message)
	return hex.EncodeToString(m.Sum(nil))
}
