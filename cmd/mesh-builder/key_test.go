package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mesh-control/mesh/internal/pki"
)

// The file is replaced while the builder runs, as it is when the builder is issued again.
func TestKeyThatWasIssuedAgainIsUsedWithoutARestart(t *testing.T) {
	t.Parallel()
	const url = "https://forge.example/a.git"
	o := &options{key: filepath.Join(t.TempDir(), "key")}
	for _, value := range []string{"first", "second"} {
		private, public, err := pki.NewSealingKey()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(o.key, private, 0o600); err != nil {
			t.Fatal(err)
		}
		sealed, err := pki.SealRepository(public, pki.RepositoryCredential, url, 1, []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := o.openCredential(url, sealed); err != nil || string(got) != value {
			t.Errorf("%s opens to %q, %v", value, got, err)
		}
		if got, err := o.openCredential(url+"/other", sealed); err == nil {
			t.Errorf("it opens for another repository: %q", got)
		}
	}
}
