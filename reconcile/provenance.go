package reconcile

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/registry"
)

// checkTime is how long one trace asks the registry, and checkers how many chains at once.
const (
	checkTime = 20 * time.Second
	checkers  = 4
)

// check verifies what builders signed of the manifests of chains.
func (g *glance) check(ctx context.Context, q inventory.Queryer, chains []api.TraceChain) error {
	keys, err := builds.SigningKeys(ctx, q)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	c := &checking{ctx: asking, keys: keys}
	if g.registry == nil {
		c.trouble = errors.New("the controller was told of no registry")
	} else if c.registry, c.trouble = g.registry(); c.trouble == nil {
		defer c.registry.Close()
	}
	var group errgroup.Group
	group.SetLimit(checkers)
	for i := range chains {
		chain := &chains[i]
		if chain.Digest == "" {
			continue
		}
		record, recorded, err := g.recordOf(ctx, q, chain)
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		group.Go(func() error {
			check := c.check(chain.Module, chain.Provenance, record, recorded)
			chain.Check = &check
			return nil
		})
	}
	return group.Wait()
}

// recordOf is what the mesh recorded of the build whose provenance a chain has.
func (g *glance) recordOf(ctx context.Context, q inventory.Queryer, chain *api.TraceChain) (provenance.Build, time.Time, error) {
	for _, build := range chain.Builds {
		if build.Provenance != "" && build.Provenance == chain.Provenance {
			return builds.Recorded(ctx, q, build.ID)
		}
	}
	return provenance.Build{}, time.Time{}, nil
}

// checking is one look at what is signed.
type checking struct {
	ctx      context.Context //nolint:containedctx // it is one call's
	keys     []provenance.Key
	registry *registry.Client
	trouble  error // there is no registry to ask
}

// check holds the provenance of a digest against the record of its build.
func (c *checking) check(module, digest string, record provenance.Build, recorded time.Time) api.ProvenanceCheck {
	out := api.ProvenanceCheck{State: api.ProvenanceVerified, Digest: digest}
	fail := func(state, format string, args ...any) api.ProvenanceCheck {
		out.State, out.Message = state, fmt.Sprintf(format, args...)
		return out
	}
	switch {
	case digest == "":
		return fail(api.ProvenanceMissing, "no build of this manifest recorded any")
	case c.trouble != nil:
		return fail(api.ProvenanceUnreachable, "%s", c.trouble)
	}
	attached, subject, err := c.registry.Attachment(c.ctx, registry.ManifestRepository(module), digest)
	switch {
	case registry.NotFound(err):
		return fail(api.ProvenanceMissing, "the registry does not have it any more: %s", err)
	case errors.Is(err, registry.ErrDigest), errors.Is(err, registry.ErrNotAttached):
		return fail(api.ProvenanceAltered, "%s", err)
	case err != nil:
		return fail(api.ProvenanceUnreachable, "%s", err)
	case len(attached.Files) != 1 || attached.Files[0].MediaType != provenance.MediaTypeEnvelope:
		return fail(api.ProvenanceAltered, "what is attached as %s is no signed statement", digest)
	}
	out.Envelope = string(attached.Files[0].Data)
	statement, key, err := provenance.Open(attached.Files[0].Data, c.keys, recorded)
	if key.Builder != "" {
		out.Builder, out.Key = key.Builder, publicPEM(key)
	}
	switch {
	case errors.Is(err, provenance.ErrUnknownKey):
		return fail(api.ProvenanceUnknownKey, "%s", err)
	case errors.Is(err, provenance.ErrWithdrawn):
		return fail(api.ProvenanceWithdrawn, "%s", err)
	case err != nil:
		return fail(api.ProvenanceAltered, "%s", err)
	}
	describe(&out, statement)
	differences := provenance.Differences(statement, key.Builder, record)
	if subject != record.Digest {
		differences = append(differences, "it is attached to "+subject)
	}
	if len(differences) > 0 {
		return fail(api.ProvenanceContradicts, "%s", strings.Join(differences, "; "))
	}
	if !key.Withdrawn.IsZero() {
		out.Message = "the builder's key was withdrawn later, " + key.Withdrawn.UTC().Format(time.RFC3339)
	}
	return out
}

func describe(out *api.ProvenanceCheck, s provenance.Statement) {
	run := s.Predicate.RunDetails
	out.Build, out.Commit = run.Metadata.InvocationID, s.Predicate.BuildDefinition.ExternalParameters.Commit
	out.Started, out.Finished = run.Metadata.StartedOn, run.Metadata.FinishedOn
	for _, list := range run.Byproducts {
		if list.MediaType == provenance.MediaTypeSBOM {
			out.SBOMs = append(out.SBOMs, api.SBOMRef{Artifact: list.Name, Digest: "sha256:" + list.Digest["sha256"]})
		}
	}
}

func publicPEM(key provenance.Key) string {
	der, err := x509.MarshalPKIXPublicKey(key.Public)
	if err != nil {
		return "" // not of an ed25519 key
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// sboms gives the lists of what the bundles of each module traced were made of, as their
// builder signed them.
func (g *glance) sboms(ctx context.Context, chains []api.TraceChain) ([]api.SBOM, error) {
	found := []api.SBOM{}
	for _, chain := range chains {
		if chain.Check == nil || len(chain.Check.SBOMs) == 0 {
			continue
		}
		more, err := g.sbomsOf(ctx, chain)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

func (g *glance) sbomsOf(ctx context.Context, chain api.TraceChain) ([]api.SBOM, error) {
	client, err := g.registry()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var found []api.SBOM
	for _, list := range chain.Check.SBOMs {
		data, err := client.Text(ctx, registry.ManifestRepository(chain.Module), list.Digest)
		if err != nil {
			return nil, &api.Error{
				Code: api.CodeUnavailable, Message: fmt.Sprintf("the list of what %s of module %s was made of cannot be read: %s", list.Artifact, chain.Module, err),
				Remedy: "see that the registry answers",
			}
		}
		found = append(found, api.SBOM{
			Module: chain.Module, Artifact: list.Artifact, Manifest: chain.Digest, Digest: list.Digest, Signed: chain.Check.State, Document: string(data),
		})
	}
	return found, nil
}
