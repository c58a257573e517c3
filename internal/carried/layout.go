package carried

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tree is the content of a layer, by slash path without a leading slash.
type tree map[string]entry

type entry struct {
	from string // a file of the machine, or
	text []byte // its content, or
	link string // where a symbolic link points; none of them is a directory
	mode int64
}

func (t tree) file(name, from string, mode int64) { t[clean(name)] = entry{from: from, mode: mode} }

func (t tree) text(name, text string, mode int64) {
	t[clean(name)] = entry{text: []byte(text), mode: mode}
}
func (t tree) link(name, to string)        { t[clean(name)] = entry{link: to, mode: 0o777} }
func (t tree) dir(name string, mode int64) { t[clean(name)] = entry{mode: mode} }
func clean(name string) string             { return strings.Trim(path.Clean("/"+name), "/") }
func (e entry) isDir() bool                { return e.from == "" && e.text == nil && e.link == "" }

// machine adds a file of the machine under its own path, links followed and execution kept.
// Paths lie under usr: bin, lib and lib64 are links into it, as on every merged system.
func (t tree) machine(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", name)
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	at := clean(name)
	for _, merged := range []string{"bin/", "lib/", "lib64/", "sbin/"} {
		if strings.HasPrefix(at, merged) {
			at = "usr/" + at
		}
	}
	t.file(at, name, mode)
	return nil
}

// base is what every image has: the links of a merged system, and accounts.
func base(accounts ...string) tree {
	t := tree{}
	for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
		t.dir("usr/"+dir, 0o755)
		t.link(dir, "usr/"+dir)
	}
	passwd, group := "root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n"
	for _, account := range accounts {
		passwd += account + ":x:999:999:" + account + ":/var/lib/" + account + ":/bin/sh\n"
		group += account + ":x:999:\n"
	}
	t.text("etc/passwd", passwd+"nobody:x:65534:65534:nobody:/:/bin/false\n", 0o644)
	t.text("etc/group", group+"nogroup:x:65534:\n", 0o644)
	t.dir("root", 0o700)
	t.dir("tmp", 0o1777)
	return t
}

// write makes the layout of an image with one layer.
func write(dir string, t tree, config v1.Config) error {
	layer, err := writeLayer(dir, t)
	if err != nil {
		return err
	}
	diffID, err := v1.NewHash(layer.Digest.String())
	if err != nil {
		return err
	}
	file, err := writeJSON(dir, string(types.OCIConfigJSON), v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, Config: config,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
	})
	if err != nil {
		return err
	}
	manifest, err := writeJSON(dir, string(types.OCIManifestSchema1), v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: file, Layers: []v1.Descriptor{layer},
	})
	if err != nil {
		return err
	}
	index, err := json.Marshal(v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{manifest},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644)
}

func writeJSON(dir, mediaType string, v any) (v1.Descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return writeBlob(dir, mediaType, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func writeLayer(dir string, t tree) (v1.Descriptor, error) {
	return writeBlob(dir, string(types.OCIUncompressedLayer), func(w io.Writer) error {
		archive := tar.NewWriter(w)
		for _, name := range slices.Sorted(maps.Keys(t.withParents())) {
			if err := writeEntry(archive, name, t[name]); err != nil {
				return fmt.Errorf("pack %s: %w", name, err)
			}
		}
		return archive.Close()
	})
}

// withParents adds the directories that nobody named.
func (t tree) withParents() tree {
	for name := range maps.Clone(t) {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if _, ok := t[parent]; !ok {
				t.dir(parent, 0o755)
			}
		}
	}
	return t
}

func writeEntry(archive *tar.Writer, name string, e entry) error {
	header := &tar.Header{Name: name, Mode: e.mode, ModTime: time.Unix(0, 0)}
	switch {
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		return archive.WriteHeader(header)
	case e.isDir():
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
		return archive.WriteHeader(header)
	case e.from == "":
		header.Typeflag, header.Size = tar.TypeReg, int64(len(e.text))
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(e.text)
		return err
	}
	file, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

// writeBlob streams a blob into the layout.
func writeBlob(dir, mediaType string, fill func(io.Writer) error) (v1.Descriptor, error) {
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return v1.Descriptor{}, err
	}
	file, err := os.CreateTemp(blobs, ".blob-")
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer file.Close()
	sum := sha256.New()
	if err := fill(io.MultiWriter(file, sum)); err != nil {
		return v1.Descriptor{}, err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if err := file.Chmod(0o644); err != nil {
		return v1.Descriptor{}, err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	return v1.Descriptor{
		MediaType: types.MediaType(mediaType), Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: digest},
	}, os.Rename(file.Name(), filepath.Join(blobs, digest))
}
