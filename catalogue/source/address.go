package source

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"
)

// Auth is what a private repository asks for. Nil is none.
type Auth struct {
	User     string
	Password string // or a token
	// PrivateKey is an OpenSSH private key (PEM) for ssh addresses.
	PrivateKey string
	// HostKeys are the server's public keys, as lines of authorized_keys. An ssh server
	// with any other key is refused.
	HostKeys []string
}

var errHostKey = errors.New("the server's host key is not one of those pinned")

var scpLike = regexp.MustCompile(`^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^/].*$|^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:/.*$`)

// CheckAddress says whether this package reads repositories at address: http, https, ssh and
// git URLs, user@host:path, file:// and absolute paths. A password inside is refused, since
// an address is shown and stored in the clear.
func CheckAddress(address string) error {
	if address == "" || address != printable(address) {
		return failure(Invalid, "%q is not a repository's address", address)
	}
	if _, ok := LocalPath(address); ok {
		return nil
	}
	if scpLike.MatchString(address) {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return failure(Invalid, "%q is not a URL", Redact(address))
	}
	if _, has := u.User.Password(); has {
		return failure(Invalid, "%s: the address carries a password; give the credential apart from it", Redact(address))
	}
	switch u.Scheme {
	case "http", "https":
		if u.User != nil {
			return failure(Invalid, "%s: the address carries a user or token; give the credential apart from it", Redact(address))
		}
	case "ssh", "git":
	default:
		return failure(Invalid, "%s: use http, https, ssh, git or file, or an absolute path", Redact(address))
	}
	if u.Host == "" || u.Path == "" || u.Path == "/" {
		return failure(Invalid, "%s: an address needs a host and a path", Redact(address))
	}
	return nil
}

// LocalPath is the directory of a repository on this machine, if address names one.
func LocalPath(address string) (string, bool) {
	if rest, ok := strings.CutPrefix(address, "file://"); ok {
		if !strings.HasPrefix(rest, "/") {
			return "", false
		}
		if u, err := url.Parse(address); err == nil {
			rest = u.Path
		}
		return filepath.Clean(rest), true
	}
	if filepath.IsAbs(address) {
		return filepath.Clean(address), true
	}
	return "", false
}

// GitDirectory is where the objects and refs of the repository at dir lie: dir itself when it
// is bare, its .git otherwise.
func GitDirectory(dir string) (string, error) {
	for _, candidate := range []string{dir, filepath.Join(dir, ".git")} {
		if _, err := os.Stat(filepath.Join(candidate, "HEAD")); err != nil {
			continue
		}
		if info, err := os.Stat(filepath.Join(candidate, "objects")); err == nil && info.IsDir() {
			return candidate, nil
		}
	}
	if _, err := os.Stat(dir); err != nil {
		return "", failure(Unreachable, "%s: %v", dir, errors.Unwrap(err))
	}
	return "", failure(RepositoryNotFound, "%s is not a git repository", dir)
}

// method is the transport's form of auth for an endpoint's protocol.
func (a *Auth) method(protocol string) (transport.AuthMethod, error) {
	switch {
	case protocol == "ssh":
		if a == nil || a.PrivateKey == "" {
			return nil, failure(AuthenticationFailed, "an ssh address needs a private key and the server's host keys")
		}
		if len(a.HostKeys) == 0 {
			return nil, failure(HostKeyUnknown, "no host key is pinned for this ssh address")
		}
		user := a.User
		if user == "" {
			user = "git"
		}
		keys, err := gitssh.NewPublicKeys(user, []byte(a.PrivateKey), a.Password)
		if err != nil {
			return nil, failure(AuthenticationFailed, "the private key cannot be used")
		}
		keys.HostKeyCallback, err = a.pinned()
		return keys, err
	case a == nil || a.Password == "":
		return nil, nil
	case protocol == "http" || protocol == "https":
		user := a.User
		if user == "" {
			user = "git"
		}
		return &githttp.BasicAuth{Username: user, Password: a.Password}, nil
	}
	return nil, nil
}

func (a *Auth) pinned() (ssh.HostKeyCallback, error) {
	var accepted []ssh.PublicKey
	for _, line := range a.HostKeys {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, failure(HostKeyUnknown, "a pinned host key cannot be read")
		}
		accepted = append(accepted, key)
	}
	return hostKeys(accepted).check, nil
}

func (a *Auth) redact(s string) string {
	if a == nil {
		return s
	}
	for _, secret := range []string{a.Password, a.PrivateKey} {
		if len(secret) >= 4 {
			s = strings.ReplaceAll(s, secret, "***")
			s = strings.ReplaceAll(s, url.QueryEscape(secret), "***")
		}
	}
	return s
}
