package registry

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/mesh-control/mesh/schema"
)

// savedImage is one entry of manifest.json in a tar made by `docker save`.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// BuilderLabel is on images while an engine builds them, with the builder's name. Normalised
// ones do not have it.
const BuilderLabel = "mesh.builder"

// Normalise turns an image saved by an engine into an OCI layout in dir that does not depend
// on when and where it was built: entries of layers sorted, without times and names of
// owners; config without history, times and what engines add. Layers named in keep, by the
// digest of their uncompressed tar, are someone else's and stay as they are. Nothing is held
// in memory but headers.
func Normalise(saved, dir string, keep []string) (Image, error) {
	f, err := os.Open(saved)
	if err != nil {
		return Image{}, err
	}
	defer f.Close()
	image, err := normalise(f, dir, keep)
	if err != nil {
		return Image{}, fmt.Errorf("normalise image: %w", err)
	}
	return image, nil
}

func normalise(f *os.File, dir string, keep []string) (Image, error) {
	if err := makeLayout(dir); err != nil {
		return Image{}, err
	}
	members, err := readMembers(f)
	if err != nil {
		return Image{}, err
	}
	var images []savedImage
	if err := members.decode("manifest.json", &images); err != nil {
		return Image{}, err
	}
	if len(images) != 1 {
		return Image{}, fmt.Errorf("manifest.json names %d images", len(images))
	}
	raw, err := members.open(images[0].Config)
	if err != nil {
		return Image{}, err
	}
	config, err := v1.ParseConfigFile(raw)
	if err != nil {
		return Image{}, fmt.Errorf("read image config: %w", err)
	}
	if len(config.RootFS.DiffIDs) != len(images[0].Layers) {
		return Image{}, fmt.Errorf("config names %d layers and manifest.json %d", len(config.RootFS.DiffIDs), len(images[0].Layers))
	}
	var layers []imageLayer
	for i, name := range images[0].Layers {
		section, err := members.open(name)
		if err != nil {
			return Image{}, err
		}
		own := !slices.Contains(keep, config.RootFS.DiffIDs[i].String())
		layer, entries, err := storeLayer(dir, section, own)
		if err != nil {
			return Image{}, fmt.Errorf("layer %d: %w", i, err)
		}
		if own && entries == 0 {
			continue // an instruction that changed no file; whether it makes a layer is the engine's taste
		}
		layers = append(layers, layer)
	}
	return finishLayout(dir, *config, cleanConfig(config.Config), layers)
}

// members are the files of a tar, by name.
type members struct {
	file  *os.File
	at    map[string]span
	links map[string]string
}

type span struct{ offset, size int64 }

func readMembers(f *os.File) (*members, error) {
	m := &members{file: f, at: map[string]span{}, links: map[string]string{}}
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return nil, err
		}
		offset, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			m.at[name] = span{offset, h.Size}
		case tar.TypeSymlink: // engines save equal layers once
			m.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			m.links[name] = path.Clean(h.Linkname)
		}
	}
}

func (m *members) open(name string) (*io.SectionReader, error) {
	if target, ok := m.links[name]; ok {
		name = target
	}
	s, ok := m.at[name]
	if !ok {
		return nil, fmt.Errorf("saved image has no %q", name)
	}
	return io.NewSectionReader(m.file, s.offset, s.size), nil
}

func (m *members) decode(name string, into any) error {
	r, err := m.open(name)
	if err != nil {
		return err
	}
	if err := json.NewDecoder(io.LimitReader(r, maxDocument)).Decode(into); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// storeLayer writes a layer into the layout, rewritten or verbatim, and counts its entries.
func storeLayer(dir string, layer *io.SectionReader, rewrite bool) (imageLayer, int, error) {
	temp, err := os.CreateTemp(dir, "layer-")
	if err != nil {
		return imageLayer{}, 0, err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	hash := sha256.New()
	counted := &counter{w: io.MultiWriter(temp, hash)}
	entries := 0
	if rewrite {
		entries, err = rewriteLayer(layer, counted)
	} else {
		_, err = io.Copy(counted, layer)
	}
	if err != nil {
		return imageLayer{}, 0, err
	}
	digest := "sha256:" + hex.EncodeToString(hash.Sum(nil))
	if err := os.Rename(temp.Name(), blobPath(dir, digest)); err != nil {
		return imageLayer{}, 0, err
	}
	return imageLayer{
		ociDescriptor: ociDescriptor{MediaType: schema.MediaTypeTar, Digest: digest, Size: counted.n}, diffID: digest,
	}, entries, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// layerEntry is a header and where its bytes lie.
type layerEntry struct {
	header *tar.Header
	at     span
}

// rewriteLayer writes the layer's entries by one rule: sorted by name, hard links after what
// they may link to, time zero, owners by number.
func rewriteLayer(layer *io.SectionReader, w io.Writer) (int, error) {
	entries, err := layerEntries(layer)
	if err != nil {
		return 0, err
	}
	slices.SortStableFunc(entries, func(a, b layerEntry) int {
		return cmp.Or(
			cmp.Compare(linkRank(a.header), linkRank(b.header)),
			strings.Compare(a.header.Name, b.header.Name),
		)
	})
	tw := tar.NewWriter(w)
	for _, e := range entries {
		if err := tw.WriteHeader(e.header); err != nil {
			return 0, fmt.Errorf("%s: %w", e.header.Name, err)
		}
		if _, err := io.Copy(tw, io.NewSectionReader(layer, e.at.offset, e.at.size)); err != nil {
			return 0, fmt.Errorf("%s: %w", e.header.Name, err)
		}
	}
	return len(entries), tw.Close()
}

func linkRank(h *tar.Header) int {
	if h.Typeflag == tar.TypeLink {
		return 1
	}
	return 0
}

func layerEntries(layer *io.SectionReader) ([]layerEntry, error) {
	var start [4]byte
	if n, _ := layer.ReadAt(start[:], 0); n == 4 && (bytes.HasPrefix(start[:], []byte{0x1f, 0x8b}) || bytes.Equal(start[:], []byte{0x28, 0xb5, 0x2f, 0xfd})) {
		return nil, fmt.Errorf("engine saved it compressed")
	}
	var entries []layerEntry
	tr := tar.NewReader(layer)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		offset, err := layer.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		clean, keep := cleanHeader(h)
		if !keep {
			continue
		}
		size := int64(0)
		if h.Typeflag == tar.TypeReg {
			size = h.Size
		}
		entries = append(entries, layerEntry{clean, span{offset, size}})
	}
}

// cleanHeader keeps what a file is and drops when and by whom it came to be.
func cleanHeader(h *tar.Header) (*tar.Header, bool) {
	name := path.Clean(strings.TrimPrefix(filepath.ToSlash(h.Name), "/"))
	if name == "." {
		return nil, false
	}
	if h.Typeflag == tar.TypeDir {
		name += "/"
	}
	clean := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid,
		Devmajor: h.Devmajor, Devminor: h.Devminor, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	}
	if h.Typeflag == tar.TypeReg {
		clean.Size = h.Size
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") { // capabilities of a program live there
			if clean.PAXRecords == nil {
				clean.PAXRecords = map[string]string{}
			}
			clean.PAXRecords[key] = value
		}
	}
	return clean, true
}
