package builder_test

import (
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func TestVerifySaysWhichArtifactsAreTheSameWhenMadeTwiceAndWhereTheOthersPart(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t)).withEngine()
	shell := r.carry(sample{carry: carried.Busybox})
	repo := testenv.Git(t)
	repo.Write("module.json", `{"name": "m", "artifacts": {
    "site":   {"kind": "archive", "path": "site"},
    "prog":   {"kind": "bundle", "path": "prog"},
    "steady": {"kind": "image", "dockerfile": "steady/Dockerfile"},
    "stamped": {"kind": "image", "dockerfile": "stamped/Dockerfile"}},
  "resources": [{"id": "prog", "type": "container", "artifact": "prog"}]}`)
	repo.Write("site/index.html", "<p>hello</p>\n")
	repo.Write("prog/go.mod", "module example.org/prog\n\ngo 1.24\n")
	repo.Write("prog/main.go", hello)
	repo.Write("steady/Dockerfile", "FROM "+shell+"\nRUN mkdir /srv && echo same > /srv/a && touch /srv/b\n")
	repo.Write("stamped/Dockerfile", "FROM "+shell+"\nRUN echo same > /srv.a\nRUN mkdir /srv && echo same > /srv/a && cat /proc/sys/kernel/random/uuid > /srv/stamp && echo same > /srv/z\n")
	repo.Commit("one of four is not reproducible")

	first := r.built(schema.Job{Repository: repo.URL(), Verify: true})
	for _, name := range []string{"site", "prog", "steady"} {
		if got, ok := first.Reproducible[name]; !ok || !got.Same || got.Difference != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	stamped := first.Reproducible["stamped"]
	if stamped.Same || !strings.Contains(stamped.Difference, "layer 3") || !strings.Contains(stamped.Difference, "srv/stamp: differs at byte ") {
		t.Errorf("stamped: %+v", stamped)
	}

	// The inputs are those of the manifest there is: it stays, whatever came out this time.
	current := &schema.CurrentManifest{Digest: first.Digest, Tree: first.Tree, Recipe: first.Manifest.Recipe}
	second := r.build(schema.Job{Repository: repo.URL(), Verify: true, Current: current})
	if second.Outcome != schema.OutcomeUnchanged || second.Digest != first.Digest || len(second.Reproducible) != 4 || second.Reproducible["stamped"].Same {
		t.Errorf("outcome %s, manifest %s and not %s: %+v %+v", second.Outcome, second.Digest, first.Digest, second.Reproducible, second.Error)
	}
	if left, err := r.client.Manifest(t.Context(), "m", first.Digest); err != nil || left.Artifacts["stamped"].Digest != first.Manifest.Artifacts["stamped"].Digest {
		t.Errorf("%+v, %v", left.Artifacts["stamped"], err)
	}
	plain := r.build(schema.Job{Repository: repo.URL(), Current: current})
	if plain.Outcome != schema.OutcomeUnchanged || plain.Reproducible != nil {
		t.Errorf("without comparing: %s %+v", plain.Outcome, plain.Reproducible)
	}
}
