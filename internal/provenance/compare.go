package provenance

import (
	"fmt"
	"maps"
	"slices"
)

// Differences says where a statement, signed by the builder named, says something else than
// what is on record of its build. None means that it confirms the record.
func Differences(s Statement, signer string, record Build) []string {
	var found []string
	compare := func(what, said, recorded string) {
		if said != recorded {
			found = append(found, fmt.Sprintf("it says %s %q, on record is %q", what, said, recorded))
		}
	}
	p := s.Predicate.BuildDefinition.ExternalParameters
	compare("module", p.Module, record.Module)
	compare("repository", p.Repository, record.Source.Repository)
	compare("path", p.Path, record.Source.Path)
	compare("commit", p.Commit, record.Source.Commit)
	compare("recipe", p.Recipe, record.Recipe)
	compare("tree", s.Predicate.BuildDefinition.InternalParameters.Tree, record.Source.Tree)
	compare("build", s.Predicate.RunDetails.Metadata.InvocationID, record.ID)
	compare("builder", s.Predicate.RunDetails.Builder.ID, BuilderID(record.Builder))
	if signer != record.Builder {
		found = append(found, fmt.Sprintf("builder %s signed it, and the build is recorded of %s", signer, record.Builder))
	}
	return append(found, subjectDifferences(s, record)...)
}

func subjectDifferences(s Statement, record Build) []string {
	said := map[string]string{}
	var found []string
	for _, subject := range s.Subject {
		if _, twice := said[subject.Name]; twice {
			found = append(found, "it is about "+subject.Name+" twice")
		}
		said[subject.Name] = subject.Digest["sha256"]
	}
	for _, want := range subjects(record) {
		digest := want.Digest["sha256"]
		if said[want.Name] != digest {
			found = append(found, fmt.Sprintf("it is not about %s@sha256:%s", want.Name, digest))
		}
		delete(said, want.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		found = append(found, fmt.Sprintf("it is about %s too, which is not on record", name))
	}
	return found
}
