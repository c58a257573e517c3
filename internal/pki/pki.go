// Package pki is the mesh's trust: its certificate authority, pinned TLS, sealing to one
// node, and signatures over declarations.
//
// A pin is the SHA-256 of a certificate's SubjectPublicKeyInfo, written "sha256:<hex>", so a
// renewed certificate over the same key keeps its pin. A client is told a pin together with
// the address and learns nothing from the server: a certificate that matches no pin ends the
// handshake before a password is sent, whoever vouches for it.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// ControllerName is the name a controller's certificate bears, at whatever address it answers.
const ControllerName = "controller.mesh"

// How long certificates are valid. Backdated an hour, because clocks differ.
const (
	caValidity   = 20 * 365 * 24 * time.Hour
	leafValidity = 2 * 365 * 24 * time.Hour
	backdate     = time.Hour
)

// CA is the mesh's certificate authority.
type CA struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority called name, with a fresh ECDSA P-256 key.
func NewCA(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template, err := template(name, caValidity)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate: %w", err)
	}
	return &CA{Cert: cert, key: key}, nil
}

// LoadCA reads an authority from the two PEM blocks that [CA.PEM] gives.
func LoadCA(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := ParseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("load CA: the key is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("load CA key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("load CA: key and certificate do not belong together")
	}
	return &CA{Cert: cert, key: key}, nil
}

// PEM gives certificate and private key.
func (ca *CA) PEM() (certPEM, keyPEM []byte, err error) {
	keyPEM, err = encodeKey(ca.key)
	return encodeCertificate(ca.Cert.Raw), keyPEM, err
}

// Issue makes a certificate for a server or client called cn that answers at hosts (names
// and IP addresses). certPEM carries the CA's certificate after its own.
func (ca *CA) Issue(cn string, hosts []string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", cn, err)
	}
	template, err := template(cn, leafValidity)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", cn, err)
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", cn, err)
	}
	return append(encodeCertificate(der), encodeCertificate(ca.Cert.Raw)...), keyPEM, nil
}

func template(cn string, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: cn},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(validity),
	}, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseCertificate reads the first certificate of a PEM text.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("not a PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Fingerprint is the certificate's pin, "sha256:<hex>" over its SubjectPublicKeyInfo.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// FingerprintPEM is Fingerprint of the first certificate of a PEM text.
func FingerprintPEM(text []byte) (string, error) {
	cert, err := ParseCertificate(text)
	if err != nil {
		return "", err
	}
	return Fingerprint(cert), nil
}

// ServerConfig serves with the given certificate and key.
func ServerConfig(certPEM, keyPEM []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// ErrPin is in the chain of every handshake error about a certificate that matches no pin.
var ErrPin = errors.New("the server's certificate does not match the fingerprint this credential carries")

// ClientConfig connects only to a server whose certificate has one of the pins, or is signed
// by a certificate in its chain that has one and bears the ServerName the caller sets on the
// result. It never looks at the machine's trust store. With no pin every handshake fails.
//
// A pinned authority without a ServerName is refused: TLS carries no name for a bare IP
// address, and whoever holds any certificate of the mesh could answer there.
//
// The check stands in VerifyConnection because the other hook is skipped on resumed
// sessions.
func ClientConfig(fingerprints ...string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // replaced by the pin check below
		MinVersion:         tls.VersionTLS12,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyPins(state, fingerprints)
		},
	}
}

func verifyPins(state tls.ConnectionState, pins []string) error {
	chain := state.PeerCertificates
	if len(pins) == 0 {
		return fmt.Errorf("connect to %s: no fingerprint was given to check the server against", state.ServerName)
	}
	if len(chain) == 0 {
		return errors.New("the server presented no certificate")
	}
	leaf := chain[0]
	if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("the server's certificate is valid from %s to %s, and it is %s",
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	if slices.Contains(pins, Fingerprint(leaf)) {
		return nil
	}
	for _, authority := range chain[1:] {
		if !authority.IsCA || !slices.Contains(pins, Fingerprint(authority)) {
			continue
		}
		if state.ServerName == "" {
			return errors.New("a pinned authority needs a server name to check, and none was set")
		}
		roots := x509.NewCertPool()
		roots.AddCert(authority)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: state.ServerName}); err != nil {
			return err
		}
		return nil
	}
	return fmt.Errorf("%w: got %s", ErrPin, Fingerprint(leaf))
}
