package genesis

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

// keys is everything the installer makes and hands over.
type keys struct {
	ca                      *pki.CA
	caPEM, caKeyPEM         []byte
	declaration             ed25519.PrivateKey
	registry                ed25519.PrivateKey
	initBuilder             ed25519.PrivateKey // signs the provenance of what is built before there is a mesh
	token                   string             // the operator's
	controllerRole          string             // passwords
	catalogueRole           string
	superuser               string
	brokerAdmin             string
	controllerAccount, node string // broker passwords
}

// makeKeys makes each key that is not there yet, and reads the others. A key file that is
// there and cannot be read is an error: what depends on it would be lost with it.
func makeKeys(l layout, mesh string) (*keys, error) {
	k := &keys{}
	if err := k.authority(l, mesh); err != nil {
		return nil, err
	}
	for name, key := range map[string]*ed25519.PrivateKey{"declaration": &k.declaration, "registry": &k.registry, "builder": &k.initBuilder} {
		var err error
		if *key, err = signingKey(l.keys("signing-" + name + ".pem")); err != nil {
			return nil, fmt.Errorf("%s key: %w", name, err)
		}
	}
	for name, password := range map[string]*string{
		"operator-token": &k.token, "controller-role": &k.controllerRole, "catalogue-role": &k.catalogueRole,
		"superuser": &k.superuser, "broker-admin": &k.brokerAdmin, "controller-account": &k.controllerAccount, "node-account": &k.node,
	} {
		var err error
		if *password, err = password32(l.keys(name)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return k, nil
}

func (k *keys) authority(l layout, mesh string) error {
	if !exists(l.keys("ca.pem")) {
		ca, err := pki.NewCA("mesh " + mesh)
		if err != nil {
			return err
		}
		cert, key, err := ca.PEM()
		if err != nil {
			return err
		}
		// The key first: a certificate without it would look like a finished step.
		if err := writeFile(l.keys("ca-key.pem"), key, 0o600); err != nil {
			return err
		}
		if err := writeFile(l.keys("ca.pem"), cert, 0o600); err != nil {
			return err
		}
	}
	var err error
	if k.caPEM, err = os.ReadFile(l.keys("ca.pem")); err != nil {
		return err
	}
	if k.caKeyPEM, err = os.ReadFile(l.keys("ca-key.pem")); err != nil {
		return err
	}
	k.ca, err = pki.LoadCA(k.caPEM, k.caKeyPEM)
	return err
}

func signingKey(path string) (ed25519.PrivateKey, error) {
	if !exists(path) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		if err := writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ed25519 key", path)
	}
	return key, nil
}

// password32 is 32 random bytes, URL-safe, kept in a file.
func password32(path string) (string, error) {
	if !exists(path) {
		random := make([]byte, 32)
		if _, err := rand.Read(random); err != nil {
			return "", err
		}
		if err := writeFile(path, []byte(base64.RawURLEncoding.EncodeToString(random)), 0o600); err != nil {
			return "", err
		}
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// certificate issues a server's certificate once and keeps it.
func (k *keys) certificate(l layout, name string, hosts ...string) (certPEM, keyPEM []byte, err error) {
	certPath, keyPath := l.keys(name+".pem"), l.keys(name+"-key.pem")
	if !exists(certPath) {
		cert, key, err := k.ca.Issue(name, hosts)
		if err != nil {
			return nil, nil, err
		}
		if err := writeFile(keyPath, key, 0o600); err != nil {
			return nil, nil, err
		}
		if err := writeFile(certPath, cert, 0o600); err != nil {
			return nil, nil, err
		}
	}
	if certPEM, err = os.ReadFile(certPath); err != nil {
		return nil, nil, err
	}
	keyPEM, err = os.ReadFile(keyPath)
	return certPEM, keyPEM, err
}

func (k *keys) writeOperator(l layout, mesh, url string) error {
	return writeJSON(l.operator(), apiclient.ContextFile{Mesh: mesh, URL: url, Fingerprint: pki.Fingerprint(k.ca.Cert), Token: k.token}, 0o600)
}

func publicPEM(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}
