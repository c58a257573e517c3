package pki_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/pki"
)

func TestRepositorySecretOpensForItsPurposeRepositoryAndKeyAlone(t *testing.T) {
	t.Parallel()
	private, public, err := pki.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := pki.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	const url = "https://forge.example/a.git"
	sealed, err := pki.SealRepository(public, pki.RepositoryCredential, url, 7, []byte("token"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pki.OpenRepository(private, pki.RepositoryCredential, url, sealed); err != nil || string(got) != "token" {
		t.Errorf("opens to %q, %v", got, err)
	}
	moved, renamed := sealed, sealed
	moved.Info = strings.Replace(sealed.Info, "a.git", "b.git", 1)
	renamed.Info = strings.Replace(sealed.Info, "\n7", "\n8", 1)
	for name, open := range map[string]func() ([]byte, error){
		"another key":     func() ([]byte, error) { return pki.OpenRepository(other, pki.RepositoryCredential, url, sealed) },
		"another purpose": func() ([]byte, error) { return pki.OpenRepository(private, pki.RepositoryHook, url, sealed) },
		"another repository": func() ([]byte, error) {
			return pki.OpenRepository(private, pki.RepositoryCredential, "https://forge.example/b.git", sealed)
		},
		"moved there": func() ([]byte, error) {
			return pki.OpenRepository(private, pki.RepositoryCredential, "https://forge.example/b.git", moved)
		},
		"another version": func() ([]byte, error) { return pki.OpenRepository(private, pki.RepositoryCredential, url, renamed) },
	} {
		if got, err := open(); !errors.Is(err, pki.ErrOpen) || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
