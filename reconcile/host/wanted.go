package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// Wanted is a declared resource, with what decides whether reality is it.
type Wanted struct {
	schema.Resource
	// Spec is a hash of the definition, in declared names. Of a file: contents, mode, owner.
	Spec string
	// Trigger is a hash of what restarts it without changing its definition: a service's
	// restart-on and the archive its program is in, the archives a container mounts.
	Trigger string
	// Content of a file, opened; in memory only.
	Content []byte
	// Err says why it cannot even be planned, such as a sealed value for another node.
	Err error
}

// want resolves the resources of a declaration: sealed values are opened, definitions hashed.
func (h *Host) want(d schema.Declaration) []Wanted {
	p := newPaths(h.layout, d.Resources)
	all := make([]Wanted, 0, len(d.Resources))
	for _, r := range d.Resources {
		w := Wanted{Resource: r}
		w.Spec, w.Err = h.spec(&w, p)
		all = append(all, w)
	}
	for i := range all {
		all[i].Trigger = trigger(all[i], all)
	}
	return all
}

func (h *Host) spec(w *Wanted, p paths) (string, error) {
	switch w.Type {
	case schema.TypeDirectory:
		return hashOf(w.Path, w.Mode, w.Owner), nil
	case schema.TypeFile:
		content, err := h.content(w.Resource)
		if err != nil {
			return "", err
		}
		w.Content = content
		return fileSpec(*w), nil
	case schema.TypeArchive:
		return archiveSpec(w.Resource), nil
	case schema.TypeContainer:
		if len(w.RestartOn) > 0 {
			return "", errors.New("restart-on: not a field of a container")
		}
		return definitionSpec(w.Resource, p)
	case schema.TypeService:
		return definitionSpec(w.Resource, p)
	}
	return "", fmt.Errorf("unknown type %q", w.Type)
}

// content opens what a file carries. The info of a sealed value says for whom and for which
// module it was sealed, so that one cannot stand in for another.
func (h *Host) content(r schema.Resource) ([]byte, error) {
	if r.Sealed == nil {
		if r.Content == nil {
			return nil, errors.New("a file needs content or a sealed value")
		}
		return []byte(*r.Content), nil
	}
	fields := strings.Split(r.Sealed.Info, "\n")
	module, _, _ := strings.Cut(r.ID, "/")
	if len(fields) != 7 || fields[2] != h.cfg.Node || h.cfg.Mesh != "" && fields[1] != h.cfg.Mesh {
		return nil, fmt.Errorf("%w: it was sealed for another node or mesh", pki.ErrOpen)
	}
	if fields[4] != module {
		return nil, fmt.Errorf("%w: it was sealed for module %q", pki.ErrOpen, fields[4])
	}
	return pki.Open(h.identity.Sealing, *r.Sealed)
}

func fileSpec(w Wanted) string {
	sum := sha256.Sum256(w.Content)
	return hashOf(w.Path, w.Mode, w.Owner, hex.EncodeToString(sum[:]))
}

func archiveSpec(r schema.Resource) string {
	return hashOf(r.Path, r.Digest, fmt.Sprint(r.Strip))
}

// definitionSpec leaves out what can change without making the thing anew: the order, and
// how its health is seen. The contents of env-files are part of it, as env is.
func definitionSpec(r schema.Resource, p paths) (string, error) {
	r.After, r.Health, r.RestartOn = nil, nil, nil
	data, err := schema.Canonical(r)
	if err != nil {
		return "", err
	}
	parts := []string{string(data)}
	for _, name := range r.EnvFiles {
		text, err := os.ReadFile(p.real(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("env-file: %w", err)
		}
		parts = append(parts, hashOf(string(text)))
	}
	return hashOf(parts...), nil
}

// trigger hashes what w has to be restarted for.
func trigger(w Wanted, all []Wanted) string {
	specs := map[string]string{}
	for _, other := range all {
		archive := other.Type == schema.TypeArchive
		switch w.Type {
		case schema.TypeService:
			if refers(w.RestartOn, w.ID, other.ID) || archive && within(path.Clean(w.Exec), path.Clean(other.Path)) {
				specs[other.ID] = other.Spec
			}
		case schema.TypeContainer:
			// A bind mount stays with the directory it found; only a new start looks again.
			if archive && slices.ContainsFunc(w.Mounts, func(m schema.Mount) bool {
				return within(path.Clean(m.Source), path.Clean(other.Path))
			}) {
				specs[other.ID] = other.Spec
			}
		}
	}
	if len(specs) == 0 {
		return ""
	}
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(specs)) {
		parts = append(parts, id, specs[id])
	}
	return hashOf(parts...)
}

// refers says whether ids, written whole or relative to from's module, name id.
func refers(ids []string, from, id string) bool {
	module, _, _ := strings.Cut(from, "/")
	return slices.Contains(ids, id) || slices.ContainsFunc(ids, func(short string) bool {
		return module+"/"+short == id
	})
}

func hashOf(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
