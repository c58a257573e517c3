package giturl

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// The schemes.
const (
	HTTP  = "http"
	HTTPS = "https"
	SSH   = "ssh"
	File  = "file"
)

// URL is an address taken apart.
type URL struct {
	Scheme string
	User   string // of ssh, "" when none is named
	Host   string // lower case; "" of a file
	Port   string // "" when it is the scheme's own
	// Path is what the server is asked for: it begins with "/", save that of user@host:path.
	Path string
}

// Error is an address that is refused. It holds no credential of it.
type Error struct {
	Address string // as it may be shown
	Problem string
	Remedy  string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s; %s", e.Address, e.Problem, e.Remedy) }

const (
	maxBytes = 2048
	spelling = "write https://host/path, ssh://user@host/path, user@host:path, or file:///path"
	apart    = "give the credential apart from the address"
)

var (
	scpLike = regexp.MustCompile(`^([A-Za-z0-9._-]+)@([A-Za-z0-9.-]+):(.+)$`)
	ports   = map[string]string{HTTP: "80", HTTPS: "443", SSH: "22"}
)

// Parse takes an address apart. Whatever it refuses is an [*Error].
func Parse(address string) (URL, error) {
	refuse := func(problem, remedy string) (URL, error) {
		return URL{}, &Error{Address: shown(address), Problem: problem, Remedy: remedy}
	}
	if address == "" || len(address) > maxBytes || strings.ContainsFunc(address, func(r rune) bool {
		return r == unicode.ReplacementChar || !unicode.IsPrint(r)
	}) {
		return refuse("not a repository's address", spelling)
	}
	if strings.HasPrefix(address, "/") {
		return URL{Scheme: File, Path: path.Clean(address)}, nil
	}
	if m := scpLike.FindStringSubmatch(address); m != nil {
		return URL{Scheme: SSH, User: m[1], Host: strings.ToLower(m[2]), Path: m[3]}, nil
	}
	if !strings.Contains(address, "://") {
		return refuse("neither a URL nor an absolute path", spelling)
	}
	u, err := url.Parse(address)
	if err != nil {
		return refuse("not a URL", spelling)
	}
	if _, has := u.User.Password(); has {
		return refuse("the address carries a password", apart)
	}
	x := URL{Scheme: u.Scheme, User: u.User.Username(), Host: strings.ToLower(u.Hostname()), Port: u.Port(), Path: u.Path}
	switch {
	case u.Scheme == File && (u.Host == "" || u.Host == "localhost") && strings.HasPrefix(u.Path, "/"):
		return URL{Scheme: File, Path: path.Clean(u.Path)}, nil
	case ports[u.Scheme] == "":
		return refuse("the mesh does not speak this scheme", spelling)
	case u.User != nil && u.Scheme != SSH:
		return refuse("the address carries a user or token", apart)
	case u.Host == "" || strings.Trim(u.Path, "/") == "":
		return refuse("an address needs a host and a path", spelling)
	case u.RawQuery != "" || u.Fragment != "":
		return refuse("an address has no query and no fragment", spelling)
	}
	if x.Port == ports[x.Scheme] {
		x.Port = ""
	}
	return x, nil
}

// String is the one normal spelling of the address; Parse gives the same URL from it.
func (u URL) String() string {
	if u.Scheme == SSH && !strings.HasPrefix(u.Path, "/") {
		return u.User + "@" + u.Host + ":" + u.Path
	}
	out := url.URL{Scheme: u.Scheme, Host: u.authority(), Path: u.Path}
	if u.User != "" {
		out.User = url.User(u.User)
	}
	return out.String()
}

// Key is equal for all addresses of one repository: host, a port that is not the scheme's
// own, and path without ".git". Case counts in the path; forges that ignore it there can be
// compared with strings.EqualFold. The key of a file is its URL.
func (u URL) Key() string {
	if u.Scheme == File {
		return u.String()
	}
	return u.authority() + "/" + strings.TrimSuffix(strings.Trim(path.Clean(u.Path), "/"), ".git")
}

func (u URL) authority() string {
	host := u.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if u.Port != "" {
		host += ":" + u.Port
	}
	return host
}

// Local is the directory of a repository on this machine.
func (u URL) Local() (directory string, ok bool) { return u.Path, u.Scheme == File }

// Local is the directory an address names, if it names one on this machine.
func Local(address string) (directory string, ok bool) {
	u, err := Parse(address)
	if err != nil {
		return "", false
	}
	return u.Local()
}

// Resolve reads an address that may be written relative to this one, "./" or "../" first, as
// .gitmodules has it.
func (u URL) Resolve(address string) (URL, error) {
	if !strings.HasPrefix(address, "./") && !strings.HasPrefix(address, "../") {
		return Parse(address)
	}
	joined := u
	joined.Path = path.Join(u.Path, address)
	if joined.Path == ".." || strings.HasPrefix(joined.Path, "../") || strings.Trim(joined.Path, "/.") == "" {
		return URL{}, &Error{Address: shown(address), Problem: "leads out of " + u.String(), Remedy: "write the whole address"}
	}
	return joined, nil
}

// SameServer says whether two addresses are asked of one server in one way, so that what is
// told to one may be told to the other.
func (u URL) SameServer(other URL) bool {
	return u.Scheme == other.Scheme && u.Host == other.Host && u.Port == other.Port
}
