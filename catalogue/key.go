package catalogue

import (
	"crypto/ecdh"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mesh-control/mesh/internal/pki"
)

// Key is what a catalogue is trusted under: what only it may read is sealed to its public
// half, an X25519 key of 32 bytes.
type Key struct {
	private, Public []byte
	Fingerprint     string
}

// NewKey makes a key that is kept nowhere.
func NewKey() (Key, error) {
	private, public, err := pki.NewSealingKey()
	return Key{private: private, Public: public, Fingerprint: pki.KeyFingerprint(public)}, err
}

// LoadKey reads the key in the file at path, and makes both when there is no file. A file
// that holds anything else is left alone: what was sealed to its key may still be wanted.
func LoadKey(path string) (Key, error) {
	private, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return Key{}, fmt.Errorf("read the catalogue's key: %w", err)
	}
	parsed, err := ecdh.X25519().NewPrivateKey(private)
	if err != nil {
		return Key{}, fmt.Errorf("read the catalogue's key: %s does not hold one; restore it, or remove it and give the repositories' credentials again", path)
	}
	public := parsed.PublicKey().Bytes()
	return Key{private: private, Public: public, Fingerprint: pki.KeyFingerprint(public)}, nil
}

// makeKey writes a new key beside its place and links it there, so that of two programs that
// start at once one wins and both read the winner's.
func makeKey(path string) (Key, error) {
	key, err := NewKey()
	if err != nil {
		return Key{}, err
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		err = linkNew(path, key.private)
	}
	if errors.Is(err, os.ErrExist) {
		return LoadKey(path)
	}
	if err != nil {
		return Key{}, fmt.Errorf("keep the catalogue's key: %w", err)
	}
	return key, nil
}

func linkNew(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".key-") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Link(file.Name(), path)
}
