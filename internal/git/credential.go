package git

import (
	"bytes"
	"cmp"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"golang.org/x/crypto/ssh"

	"github.com/mesh-control/mesh/schema"
)

// Credential is what reading a private repository takes. A nil one is none.
type Credential = schema.RepositoryCredential

// defaultUser is who one is on a forge when nobody says otherwise.
const defaultUser = "git"

var errHostKey = errors.New("the server's host key is not one of those pinned")

// CheckCredential says what is wrong with a credential before it is ever used: a private key
// that cannot be read, a host key that is none, a key without host keys.
func CheckCredential(c *Credential) error {
	if c == nil || c.PrivateKey == "" {
		return nil
	}
	_, err := sshConfig("", c)
	return err
}

// basicAuth is how HTTP is told the credential; nil when there is none.
func basicAuth(c *Credential) transport.AuthMethod {
	if c == nil || c.Password == "" || c.PrivateKey != "" {
		return nil
	}
	return &githttp.BasicAuth{Username: cmp.Or(c.User, defaultUser), Password: c.Password}
}

// handshakeTimeout bounds connecting to an ssh server, key exchange and login included.
const handshakeTimeout = 20 * time.Second

// sshConfig is how an ssh server is met as user; the credential's own user goes first.
func sshConfig(user string, c *Credential) (*ssh.ClientConfig, error) {
	if c == nil || c.PrivateKey == "" {
		return nil, Failure(AuthenticationFailed, "an ssh address needs a private key and the server's host keys")
	}
	if len(c.HostKeys) == 0 {
		return nil, Failure(HostKeyUnknown, "no host key is pinned for this ssh address")
	}
	signer, err := parseKey(c)
	if err != nil {
		return nil, err
	}
	pinned, err := parseHostKeys(c.HostKeys)
	if err != nil {
		return nil, err
	}
	user = cmp.Or(c.User, user, defaultUser)
	return &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: pinned.check, HostKeyAlgorithms: pinned.algorithms(),
	}, nil
}

func parseKey(c *Credential) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey([]byte(c.PrivateKey))
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		if c.Password == "" {
			return nil, Failure(AuthenticationFailed, "the private key is locked by a passphrase that was not given")
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase([]byte(c.PrivateKey), []byte(c.Password))
	}
	if err != nil {
		return nil, Failure(AuthenticationFailed, "the private key cannot be used: it is no OpenSSH key, or its passphrase is another")
	}
	return signer, nil
}

// hostKeys are the server keys a connection may meet; every other ends it.
type hostKeys []ssh.PublicKey

func parseHostKeys(lines []string) (hostKeys, error) {
	var keys hostKeys
	for _, line := range lines {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			// A line of known_hosts has the host in front.
			_, _, key, _, _, err = ssh.ParseKnownHosts([]byte(line))
		}
		if err != nil {
			return nil, Failure(HostKeyUnknown, "a pinned host key cannot be read: give lines such as \"ssh-ed25519 AAAA…\"")
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (k hostKeys) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	for _, pinned := range k {
		if bytes.Equal(pinned.Marshal(), key.Marshal()) {
			return nil
		}
	}
	return errHostKey
}

// algorithms makes the server show a key of a kind that is pinned: one with several would
// otherwise show what it likes best, and be refused for it.
func (k hostKeys) algorithms() []string {
	var names []string
	for _, key := range k {
		if key.Type() == ssh.KeyAlgoRSA {
			names = append(names, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512)
			continue
		}
		names = append(names, key.Type())
	}
	return names
}

// redact cuts a credential out of a text, in the forms it may take there.
func redact(c *Credential, text string) string {
	if c == nil {
		return text
	}
	for _, secret := range Secrets(c) {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}

// Secrets are the texts by which a credential would be given away.
func Secrets(c *Credential) []string {
	var secrets []string
	for _, secret := range []string{c.Password, c.PrivateKey} {
		if len(secret) < 4 {
			continue
		}
		secrets = append(secrets, secret)
		for _, escaped := range []string{url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("", secret).String()[1:]} {
			if escaped != secret {
				secrets = append(secrets, escaped)
			}
		}
	}
	return secrets
}
