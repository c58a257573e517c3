package builder

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/schema"
)

// step is how one artifact is made.
type step struct {
	name     string
	artifact schema.Artifact
	path     string // archive, bundle: directory in the repository
	language string // bundle
	asImage  bool   // bundle that a container uses
	base     string // bundle as image: upstream reference, "" is the empty image

	dockerfile string // image: file in the repository
	context    string // image: directory in the repository
}

// makePlan decides what every artifact is made from; nothing is made yet.
func (r *run) makePlan(context.Context) error {
	names := slices.SortedFunc(maps.Keys(r.module.Artifacts), func(a, b string) int {
		// What is only looked up goes first: it is the cheapest to fail.
		if ka, kb := order(r.module.Artifacts[a].Kind), order(r.module.Artifacts[b].Kind); ka != kb {
			return ka - kb
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		s := step{name: name, artifact: r.module.Artifacts[name]}
		if err := r.planStep(&s); err != nil {
			return err
		}
		r.plan = append(r.plan, s)
		r.say(name, "%s: %s", s.artifact.Kind, s.describe())
	}
	return nil
}

func order(kind string) int {
	return slices.Index([]string{schema.KindUpstream, schema.KindArchive, schema.KindBundle, schema.KindImage}, kind)
}

func (s *step) describe() string {
	switch s.artifact.Kind {
	case schema.KindUpstream:
		return s.artifact.Reference
	case schema.KindBundle:
		return s.language + " in " + show(s.path)
	case schema.KindImage:
		return s.dockerfile + " with context " + show(s.context)
	}
	return show(s.path)
}

func show(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

func (r *run) planStep(s *step) (err error) {
	a := s.artifact
	switch a.Kind {
	case schema.KindUpstream:
		return nil
	case schema.KindArchive:
		s.path, err = r.inside(s.name, "path", a.Path)
		return err
	case schema.KindBundle:
		return r.planBundle(s)
	case schema.KindImage:
		return r.planImage(s)
	}
	return failed(ReasonInvalidModule, "", "artifact %s has kind %q; there are image, bundle, archive and upstream", s.name, a.Kind)
}

// inside gives the repository's path of one in the module, which it must not leave.
func (r *run) inside(artifact, field, p string) (string, error) {
	if strings.HasPrefix(p, "/") || slices.Contains(strings.Split(p, "/"), "..") {
		return "", failed(ReasonPathOutside, "move what the module needs beneath its path",
			"artifact %s: %s %q leads out of the module's path", artifact, field, p)
	}
	full := path.Join(r.path, p)
	if full == "." {
		full = ""
	}
	if full != "" && !r.clone.Exists(full) {
		return "", failed(ReasonInvalidModule, "", "artifact %s: %s %q does not exist at commit %s", artifact, field, p, r.clone.Commit)
	}
	return full, nil
}

func (r *run) planBundle(s *step) (err error) {
	if s.path, err = r.inside(s.name, "path", s.artifact.Path); err != nil {
		return err
	}
	s.language = r.languages[s.name]
	for _, res := range r.module.Resources {
		s.asImage = s.asImage || (res.Type == schema.TypeContainer && res.Artifact == s.name)
	}
	if base := s.artifact.Base; base != "" {
		upstream, ok := r.module.Artifacts[base]
		if !ok || upstream.Kind != schema.KindUpstream {
			return failed(ReasonInvalidModule, "", "artifact %s: base %q is not an upstream artifact of this module", s.name, base)
		}
		s.base = upstream.Reference
	}
	if s.asImage && s.base == "" && toolchain.NeedsBase(s.language) {
		return failed(ReasonInvalidModule, `set "base" to an upstream artifact that has it, as docker.io/library/`+s.language,
			"artifact %s: a container uses this bundle, and %s does not run on the empty image", s.name, s.language)
	}
	return nil
}

// language is what module.json says, else what the files of the bundle's path say.
func (r *run) language(name string, a schema.Artifact) (string, error) {
	dir, err := r.inside(name, "path", a.Path)
	if err != nil || a.Language != "" {
		return a.Language, err
	}
	languages := toolchain.Files()
	var found []string
	for _, file := range slices.Sorted(maps.Keys(languages)) {
		if r.clone.Exists(path.Join(dir, file)) {
			found = append(found, file)
		}
	}
	if len(found) == 1 {
		return languages[found[0]], nil
	}
	all := strings.Join(slices.Sorted(maps.Keys(languages)), ", ")
	if len(found) == 0 {
		return "", failed(ReasonLanguage, "add one, or set language", "bundle %s: %s has none of %s", name, show(dir), all)
	}
	return "", failed(ReasonLanguage, `set "language"`, "bundle %s: %s has several of them: %s", name, show(dir), strings.Join(found, ", "))
}

func (r *run) planImage(s *step) (err error) {
	if s.dockerfile, err = r.inside(s.name, "dockerfile", s.artifact.Dockerfile); err != nil {
		return err
	}
	dir := s.artifact.Context
	if dir == "" {
		dir = path.Dir(path.Clean(s.artifact.Dockerfile))
	}
	s.context, err = r.inside(s.name, "context", dir)
	return err
}
