package registry_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func pushText(t *testing.T, client *registry.Client, repository, text string) error {
	t.Helper()
	return client.PushBlob(t.Context(), repository, schema.Digest([]byte(text)), int64(len(text)), func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	})
}

func statusOf(err error) int {
	var status *registry.StatusError
	if errors.As(err, &status) {
		return status.Status
	}
	return 0
}

func TestTokensAllowWhatTheySayAndNothingElse(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		if err := pushText(t, store.Client(t), "modules/db", "hidden"); err != nil {
			t.Fatal(err)
		}
		with := func(pattern string, actions ...string) *registry.Client {
			config := store.Config()
			config.Token = store.Token(pattern, actions...)
			return registrytest.Client(t, config)
		}
		hidden := schema.Digest([]byte("hidden"))
		push, pull, both := with("modules/*", "push"), with("modules/*", "pull"), with("modules/web", "push", "pull")

		if store.Process != nil { // 2.8 wants pull for a push
			if err := pushText(t, push, "modules/web", "text"); statusOf(err) != http.StatusForbidden {
				t.Errorf("push-only token: %v", err)
			}
			push = with("modules/db", "push")
			if err := pushText(t, both, "modules/web", "text"); err != nil {
				t.Errorf("token could not push: %v", err)
			}
		} else if err := pushText(t, push, "modules/web", "text"); err != nil {
			t.Errorf("push-only token could not push: %v", err)
		}
		if _, _, err := push.Blob(t.Context(), "modules/web", schema.Digest([]byte("text"))); statusOf(err) != http.StatusForbidden {
			t.Errorf("push-only token pulled: %v", err)
		}
		body, _, err := pull.Blob(t.Context(), "modules/web", schema.Digest([]byte("text")))
		if err != nil {
			t.Fatalf("pull-only token could not pull: %v", err)
		}
		_ = body.Close()
		if err := pushText(t, pull, "modules/web", "more"); statusOf(err) != http.StatusForbidden {
			t.Errorf("pull-only token pushed: %v", err)
		}
		if _, _, err := both.Blob(t.Context(), "modules/db", hidden); statusOf(err) != http.StatusForbidden {
			t.Errorf("token of one module pulled from another: %v", err)
		}
		if _, err := both.MountBlob(t.Context(), "modules/web", hidden, "modules/db"); statusOf(err) != http.StatusForbidden {
			t.Errorf("token of one module mounted from another: %v", err)
		}
		if there, err := store.Client(t).HasBlob(t.Context(), "modules/web", hidden); there || err != nil {
			t.Errorf("the other module's blob arrived: %v, %v", there, err)
		}
	})
}

// A token that reaches elsewhere is a matter of scopes, one that is refused a matter of keys:
// whoever reads the error looks in different places.
func TestAGoodTokenThatDoesNotReachIsNotToldAsAWrongOne(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		digest := schema.Digest([]byte("text"))
		config := store.Config()
		config.Token = store.Token("modules/db", registry.ActionPull)
		_, err := registrytest.Client(t, config).HasBlob(t.Context(), "modules/web", digest)
		if statusOf(err) != http.StatusForbidden {
			t.Errorf("a good token that does not reach: %v", err)
		}
		config.Token = registrytest.Start(t).Token("*", registry.ActionPull) // of another mesh
		_, err = registrytest.Client(t, config).HasBlob(t.Context(), "modules/web", digest)
		if statusOf(err) != http.StatusUnauthorized {
			t.Errorf("a wrong token: %v", err)
		}
	})
}

func TestTheGuardCannotBeTalkedAround(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	if err := pushText(t, store.Client(t), "modules/db", "hidden"); err != nil {
		t.Fatal(err)
	}
	client, hidden := plain(t, store), schema.Digest([]byte("hidden"))
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	token := store.Token("modules/web", "pull", "push", "delete")
	for _, path := range []string{
		"/v2/modules/web/../db/blobs/" + hidden, "/v2/modules/web/%2e%2e/db/blobs/" + hidden,
		"/v2/modules%2fdb/blobs/" + hidden, "/v2//modules/db/blobs/" + hidden, "/v2/modules/db/blobs/" + hidden + "/",
		"/v2/modules/web/blobs/uploads/../../../db/blobs/" + hidden, "/v2/_catalog", "/", "/v2/modules/db/tags/list",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, store.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.URL.Opaque = "//" + store.Address + path // sent as it stands
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode < 400 {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
	// The handler behind reads a form's fields like the query's.
	form := strings.NewReader("from=modules/db&mount=" + hidden)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, store.URL+"/v2/modules/web/blobs/uploads/", form)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if there, _ := store.Client(t).HasBlob(t.Context(), "modules/web", hidden); there || response.StatusCode != http.StatusForbidden {
		t.Errorf("mount by form: %s, there %v", response.Status, there)
	}
}

func TestForgedAndSpentTokensAreRefused(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	claims := registry.Claims{Subject: "host/n1", IssuedAt: now, Access: []registry.Access{{Repository: "*", Actions: []string{"pull"}}}}
	good := registry.SignToken(private, claims)
	if got, err := registry.VerifyToken(public, good, now); err != nil || got.Subject != "host/n1" {
		t.Fatalf("good token: %v, %v", got, err)
	}
	parts := strings.Split(good, ".")
	segment := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	signed := func(header, body string) string {
		text := segment(header) + "." + segment(body)
		return text + "." + segment(string(ed25519.Sign(private, []byte(text))))
	}
	_, stranger, _ := ed25519.GenerateKey(nil)
	claims.Expires = now.Add(-time.Second)
	header, body := `{"alg":"EdDSA","typ":"JWT"}`, `{"sub":"x","access":[],"iat":1}`
	for name, token := range map[string]string{
		"empty":            "",
		"no signature":     parts[0] + "." + parts[1] + ".",
		"alg none":         segment(`{"alg":"none","typ":"JWT"}`) + "." + parts[1] + ".",
		"signed alg none":  signed(`{"alg":"none","typ":"JWT"}`, body),
		"signed HS256":     signed(`{"alg":"HS256","typ":"JWT"}`, body),
		"critical header":  signed(`{"alg":"EdDSA","typ":"JWT","crit":["x"]}`, body),
		"unknown claim":    signed(header, `{"sub":"x","access":[],"iat":1,"nbf":2}`),
		"two bodies":       signed(header, body+body),
		"another's":        registry.SignToken(stranger, claims),
		"other claims":     parts[0] + "." + segment(`{"sub":"x","access":[{"repository":"*","actions":["push"]}],"iat":1}`) + "." + parts[2],
		"four parts":       good + ".x",
		"padded signature": good + "=",
		"expired":          registry.SignToken(private, claims),
		"huge":             strings.Repeat("a", 1<<20),
	} {
		if got, err := registry.VerifyToken(public, token, now); !errors.Is(err, registry.ErrToken) {
			t.Errorf("%s: got %v, error %v", name, got, err)
		}
	}
}

func TestPatternsOfRepositories(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, repository string
		want                bool
	}{
		{"modules/web", "modules/web", true},
		{"modules/web", "modules/web/server", false},
		{"modules/web", "modules/webb", false},
		{"modules/*", "modules/web", true},
		{"modules/*", "modules/web/server", true},
		{"modules/*", "modules", false},
		{"modules/*", "modulesx/web", false},
		{"modules/*/server", "modules/web/server", true},
		{"modules/*/server", "modules/web/x/server", false},
		{"*", "carried/docker.io/library/postgres", true},
		{"", "modules", false},
	} {
		claims := registry.Claims{Access: []registry.Access{{Repository: c.pattern, Actions: []string{"pull"}}}}
		if got := claims.Allows(c.repository, "pull"); got != c.want {
			t.Errorf("%q allows %q: %v", c.pattern, c.repository, got)
		}
		if claims.Allows(c.repository, "push") {
			t.Errorf("%q allows more than it says", c.pattern)
		}
	}
}

func TestS1_146_TheRegistryAnswersAtItsBase(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := plain(t, store)
		if got := get(t, client, "GET", store.URL+"/v2/", ""); got.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(got.Header.Get("WWW-Authenticate"), "Bearer ") {
			t.Errorf("without a token: %s, challenge %q", got.Status, got.Header.Get("WWW-Authenticate"))
		}
		if got := get(t, client, "GET", store.URL+"/v2/", store.Token("modules/x", "pull")); got.StatusCode != http.StatusOK {
			t.Errorf("with a token: %s", got.Status)
		}
	})
}

func TestAStoreThatCannotBeOpenedIsAnError(t *testing.T) {
	t.Parallel()
	public, _, _ := ed25519.GenerateKey(nil)
	for name, config := range map[string]registry.ServerConfig{
		"no key":         {Dir: t.TempDir(), Listen: []string{"127.0.0.1:0"}},
		"no address":     {Dir: t.TempDir(), Public: public},
		"no certificate": {Dir: t.TempDir(), Public: public, Listen: []string{"127.0.0.1:0"}},
	} {
		if server, err := registry.NewServer(config); err == nil {
			_ = server.Close()
			t.Errorf("%s: started", name)
		}
	}
}
