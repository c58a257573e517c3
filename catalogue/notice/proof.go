package notice

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
)

// proofs are what a request carries to show that its sender holds the secret.
type proofs struct {
	signatures [][]byte // each of HMAC-SHA256 over one of signed; nil is one that cannot be read
	signed     [][]byte
	token      *string
	standard   []byte // what Standard Webhooks signs; nil without its headers
	versions   [][]byte
}

func readProofs(header http.Header, body, document []byte) proofs {
	p := proofs{signed: [][]byte{body, document}}
	for _, name := range []string{"X-Hub-Signature-256", "X-Gitea-Signature", "X-Forgejo-Signature"} {
		if value := header.Get(name); value != "" {
			signature, _ := hex.DecodeString(strings.TrimPrefix(value, "sha256="))
			p.signatures = append(p.signatures, signature)
		}
	}
	if value := header.Get("X-Gitlab-Token"); value != "" {
		p.token = &value
	}
	if value := header.Get("Webhook-Signature"); value != "" {
		p.standard = append([]byte(header.Get("Webhook-Id")+"."+header.Get("Webhook-Timestamp")+"."), body...)
		for one := range strings.FieldsSeq(value) {
			if encoded, ok := strings.CutPrefix(one, "v1,"); ok {
				signature, _ := base64.StdEncoding.DecodeString(encoded)
				p.versions = append(p.versions, signature)
			}
		}
	}
	return p
}

func (p proofs) any() bool { return len(p.signatures) > 0 || p.token != nil || p.standard != nil }

// ProvedBy says whether the sender holds secret. What it compares takes as long for a wrong
// secret as for the right one.
func (n *Notice) ProvedBy(secret string) bool {
	p := n.proofs
	proved := 1
	if !p.any() || secret == "" {
		proved = 0
	}
	for _, signature := range p.signatures {
		held := 0
		for _, message := range p.signed {
			held |= equal(signature, sum([]byte(secret), message))
		}
		proved &= held
	}
	if p.token != nil {
		// Sums are of one length, so that the comparison does not tell the secret's.
		proved &= equal(sum(nil, []byte(*p.token)), sum(nil, []byte(secret)))
	}
	if p.standard != nil {
		key, held := standardKey(secret), 0
		for _, signature := range p.versions {
			held |= equal(signature, sum(key, p.standard))
		}
		if key == nil {
			held = 0
		}
		proved &= held
	}
	return proved == 1
}

func equal(a, b []byte) int { return subtle.ConstantTimeCompare(a, b) }

func sum(key, message []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(message)
	return mac.Sum(nil)
}
