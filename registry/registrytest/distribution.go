package registrytest

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
)

// Each runs a test on every registry a mesh may have: the embedded one, and the distribution
// project's 2.8 as it runs from the public image, with that program's own tokens. What a test
// shows, it shows of both.
func Each(t *testing.T, test func(t *testing.T, store *Registry)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { t.Parallel(); test(t, Start(t)) })
	t.Run("distribution-2.8", func(t *testing.T) { t.Parallel(); test(t, StartDistribution(t)) })
}

// StartDistribution runs Debian's docker-registry until the test ends.
func StartDistribution(t testing.TB) *Registry {
	t.Helper()
	return StartDistributionAt(t, memory(t))
}

// StartDistributionAt is StartDistribution on a store of the caller's.
func StartDistributionAt(t testing.TB, dir string) *Registry {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no servers; make test does")
	}
	ca, err := pki.NewCA("registry test")
	check(t, err)
	caPEM, _, err := ca.PEM()
	check(t, err)
	certificate, key, err := ca.Issue("registry", []string{"127.0.0.1", "localhost"})
	check(t, err)
	config := testenv.RegistryConfig{
		Dir: dir, Certificate: file(t, "certificate.pem", certificate), Key: file(t, "key.pem", key),
		TokenRoots: file(t, "ca.pem", caPEM),
	}
	process := testenv.StartDockerRegistry(t, config)
	signer, err := newTokenSigner(ca)
	check(t, err)
	return &Registry{
		URL: "https://" + process.Address, Address: process.Address, Addresses: []string{process.Address},
		CA: string(caPEM), Fingerprint: pki.Fingerprint(ca.Cert), Dir: process.Dir, Process: process, token: signer.token,
	}
}

func file(t testing.TB, name string, text []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(name, text, 0o600))
	return name
}

// tokenSigner makes tokens as distribution's token authentication wants them: signed by a key
// whose certificate comes with the token and leads to a root the registry was given.
type tokenSigner struct {
	key         *ecdsa.PrivateKey
	certificate []byte // DER
}

func newTokenSigner(ca *pki.CA) (tokenSigner, error) {
	certificate, key, err := ca.Issue("tokens", nil)
	if err != nil {
		return tokenSigner{}, err
	}
	first, _ := pem.Decode(certificate)
	block, _ := pem.Decode(key)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return tokenSigner{}, err
	}
	return tokenSigner{key: parsed.(*ecdsa.PrivateKey), certificate: first.Bytes}, nil
}

// names are the repositories that tests use. Distribution's tokens know no patterns, so one is
// spelled out.
var names = []string{
	"modules/web", "modules/web/server", "modules/web/program", "modules/web/base", "modules/db", "modules/db/server",
	"modules/db/again", "modules/db/pinned", "modules/old", "modules/old/server", "library/postgres",
	"carried/docker.io/library/postgres",
}

type resourceActions struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Actions []string `json:"actions"`
}

func (s tokenSigner) token(pattern string, actions []string) string {
	var access []resourceActions
	for _, name := range names {
		if matches(pattern, name) {
			access = append(access, resourceActions{Type: "repository", Name: name, Actions: actions})
		}
	}
	if pattern == "*" {
		access = append(access, resourceActions{Type: "registry", Name: "catalog", Actions: []string{"*"}})
	}
	now := time.Now()
	signed := segment(map[string]any{
		"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(s.certificate)},
	}) + "." + segment(map[string]any{
		"iss": testenv.TokenIssuer, "aud": testenv.TokenService, "sub": "test", "jti": rand.Text(), "access": access,
		"iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	})
	sum := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		panic(err) // of a key we made
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func segment(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return base64.RawURLEncoding.EncodeToString(text)
}
