package registry_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func TestMain(m *testing.M) { testenv.Run(m, registrytest.Leaks()) }

func TestBlobsGoInAndComeOutByDigest(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		text := []byte("hello")
		digest := schema.Digest(text)
		opened := 0
		open := func() (io.ReadCloser, error) {
			opened++
			return io.NopCloser(bytes.NewReader(text)), nil
		}
		for range 2 {
			if err := client.PushBlob(t.Context(), "modules/db", digest, int64(len(text)), open); err != nil {
				t.Fatal(err)
			}
		}
		if opened != 1 {
			t.Errorf("a blob that was there was pushed again: opened %d times", opened)
		}
		body, size, err := client.Blob(t.Context(), "modules/db", digest)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		got, err := io.ReadAll(body)
		if err != nil || string(got) != "hello" || size != 5 {
			t.Fatalf("got %q, size %d, error %v", got, size, err)
		}
	})
}
