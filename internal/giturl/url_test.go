package giturl_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/giturl"
)

func TestSpellingsOfOneRepositoryHaveOneKey(t *testing.T) {
	t.Parallel()
	for key, spellings := range map[string][]string{
		"example.org/team/app": {
			"https://example.org/team/app.git", "https://EXAMPLE.org:443/team/app", "http://example.org/team/app.git/",
			"ssh://git@example.org/team/app.git", "ssh://example.org:22//team/app", "git@example.org:team/app.git", "git@example.org:/team/app",
		},
		"example.org:8443/app":    {"https://example.org:8443/app.git", "ssh://git@example.org:8443/app"},
		"[::1]:8080/app":          {"http://[::1]:8080/app.git"},
		"file:///srv/app.git":     {"/srv/app.git", "file:///srv/app.git", "file:///srv/./x/../app.git/", "file://localhost/srv/app.git"},
		"file:///srv/a%20b":       {"/srv/a b", "file:///srv/a%20b"},
		"example.org/Team/App":    {"git@example.org:Team/App"},
		"example.org/a b/%C3%A9x": {"https://example.org/a%20b/%25C3%25A9x"},
	} {
		for _, spelling := range spellings {
			u, err := giturl.Parse(spelling)
			if err != nil {
				t.Errorf("%s: %v", spelling, err)
				continue
			}
			if got := u.Key(); got != key {
				t.Errorf("%s has key %s, want %s", spelling, got, key)
			}
			if again, err := giturl.Parse(u.String()); err != nil || again != u {
				t.Errorf("%s became %s, which is read as %+v, %v", spelling, u, again, err)
			}
		}
	}
}

func TestDifferentRepositoriesHaveDifferentKeys(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, address := range []string{
		"https://example.org/a", "https://example.org/A", "https://example.com/a", "https://example.org:8080/a", "/srv/a", "/srv/a.git", "https://example.org/a/b",
	} {
		u, err := giturl.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[u.Key()]; ok {
			t.Errorf("%s and %s are one", other, address)
		}
		seen[u.Key()] = address
	}
}

func TestRefusedAddressesAreToldWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"":                                       "not a repository's address",
		"x\x00y":                                 "not a repository's address",
		"a\nb":                                   "not a repository's address",
		"relative/path":                          "neither a URL nor an absolute path",
		"./repo":                                 "neither a URL nor an absolute path",
		"file://host/x":                          "does not speak this scheme",
		"ext::sh -c id":                          "neither a URL nor an absolute path",
		"git://example.org/x":                    "does not speak this scheme",
		"ftp://example.org/x":                    "does not speak this scheme",
		"https://example.org":                    "needs a host and a path",
		"https://example.org/x?y":                "no query",
		"https://canarySECRET@example.org/x":     "user or token",
		"https://u:canarySECRET@example.org/x":   "password",
		"ssh://u:canarySECRET@example.org/x":     "password",
		"https://u:canarySECRET/more@host/x":     "not a URL",
		"u:canarySECRET@example.org/x":           "neither a URL",
		"https://u:canary@SECRET@example.org/x ": "password",
	} {
		_, err := giturl.Parse(address)
		var refused *giturl.Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || refused.Remedy == "" {
			t.Errorf("%q: %v, want %q", address, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%q is told with its secret: %v", address, err)
		}
	}
}

func TestRedactCutsCredentialsAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`Get "https://u:p@ss@host/x": refused, see http://token@other/y`: `Get "https://host/x": refused, see http://other/y`,
		"ssh://git@host/x and ssh://git:pass@host/x":                     "ssh://git@host/x and ssh://git@host/x",
		"https://host/@scope/x":                                          "https://host/@scope/x",
		"git@host:x":                                                     "git@host:x",
	} {
		if got := giturl.Redact(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestRelativeAddressesAreReadFromTheParents(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ parent, address, want string }{
		{"https://example.org/team/app.git", "../lib.git", "https://example.org/team/lib.git"},
		{"https://example.org/team/app.git", "../../other/lib", "https://example.org/other/lib"},
		{"git@example.org:team/app.git", "../lib.git", "git@example.org:team/lib.git"},
		{"git@example.org:app.git", "../../lib.git", ""},
		{"/srv/app", "../lib", "file:///srv/lib"},
		{"/srv/app", "./lib", "file:///srv/app/lib"},
		{"https://example.org/app", "../..", ""},
		{"https://example.org/app", "git@example.com:x", "git@example.com:x"},
		{"https://example.org/app", "-u./x", ""},
	} {
		parent, err := giturl.Parse(x.parent)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parent.Resolve(x.address)
		if x.want == "" && err == nil || x.want != "" && (err != nil || got.String() != x.want) {
			t.Errorf("%s from %s: %s, %v, want %s", x.address, x.parent, got, err, x.want)
		}
	}
}
