package catalogue_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mesh-control/mesh/catalogue"
)

func TestKeyIsMadeOnceAndKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "key")
	var keys [8]catalogue.Key
	var loading sync.WaitGroup
	for i := range keys {
		loading.Go(func() {
			var err error
			if keys[i], err = catalogue.LoadKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	loading.Wait()
	for _, key := range keys {
		if key.Fingerprint == "" || key.Fingerprint != keys[0].Fingerprint {
			t.Errorf("keys %v", keys)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

func TestAFileThatIsNoKeyIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	const text = "something a person still wants"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := catalogue.LoadKey(path)
	if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), text) {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadFile(path); err != nil || string(left) != text {
		t.Errorf("the file now holds %q, %v", left, err)
	}
}
