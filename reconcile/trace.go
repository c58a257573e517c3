package reconcile

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/delivery"
	"github.com/mesh-control/mesh/reconcile/extension"
)

// digits is a commit, digest or build, or the beginning of one. Fewer than four would be
// anything.
var digits = regexp.MustCompile(`^(sha256:)?[0-9a-f]{4,64}$`)

// trace follows what is named from commit to machine. A name of a node or a module stands
// before a commit that is spelled like one.
func (g *glance) trace(ctx context.Context, c *extension.Context, in api.TraceIn) (api.TraceOut, error) {
	out := api.TraceOut{Subject: in.Subject, Chains: []api.TraceChain{}}
	if err := g.delivery.Await(ctx, c, nil); err != nil {
		return out, err
	}
	t := &tracing{glance: g, c: c}
	if err := t.load(ctx); err != nil {
		return out, err
	}
	var err error
	switch {
	case t.hasNode(in.Subject):
		out.Kind = "node"
		err = t.ofNode(ctx, &out)
	case t.status(in.Subject) != nil:
		out.Kind = "module"
		status := t.status(in.Subject)
		err = t.add(ctx, &out, *status, status.BuiltFrom, status.Digest, nil)
	case digits.MatchString(in.Subject):
		err = t.ofDigits(ctx, &out)
	default:
		err = &api.Error{
			Code: api.CodeNotFound, Message: fmt.Sprintf("%q is no module, node, commit or digest the mesh knows", in.Subject),
			Remedy: "mesh status lists modules and nodes; a commit or digest takes at least four of its hex digits",
		}
	}
	if err == nil {
		err = g.check(ctx, c.Store, out.Chains)
	}
	if err == nil && in.SBOM {
		out.SBOMs, err = g.sboms(ctx, out.Chains)
	}
	return out, err
}

// tracing is the state of the mesh that one trace looks at.
type tracing struct {
	glance  *glance
	c       *extension.Context
	modules []api.ModuleStatus
	nodes   []api.Node
}

func (t *tracing) load(ctx context.Context) (err error) {
	if t.modules, err = t.glance.builds.Statuses(ctx, t.c.Store); err != nil {
		return err
	}
	t.nodes, err = t.glance.delivery.Nodes(ctx, t.c.Store, nil, t.c.Clock.Now())
	return err
}

func (t *tracing) hasNode(name string) bool {
	return slices.ContainsFunc(t.nodes, func(n api.Node) bool { return n.Name == name })
}

func (t *tracing) status(module string) *api.ModuleStatus {
	at := slices.IndexFunc(t.modules, func(m api.ModuleStatus) bool { return m.Module == module })
	if at < 0 {
		return nil
	}
	return &t.modules[at]
}

// ofNode follows each module on a node, by the manifest that runs there.
func (t *tracing) ofNode(ctx context.Context, out *api.TraceOut) error {
	at := slices.IndexFunc(t.nodes, func(n api.Node) bool { return n.Name == out.Subject })
	for _, on := range t.nodes[at].Modules {
		status := t.status(on.Module)
		if status == nil {
			continue
		}
		digest := on.Running
		if digest == "" {
			digest = on.Declared
		}
		made, err := t.glance.builds.Of(ctx, t.c.Store, hexOf(digest))
		if err != nil {
			return err
		}
		commit := status.BuiltFrom
		if len(made) > 0 && digest != status.Digest {
			commit = made[0].Commit
		}
		if err := t.add(ctx, out, *status, commit, digest, made); err != nil {
			return err
		}
		last := &out.Chains[len(out.Chains)-1]
		last.Nodes = slices.DeleteFunc(last.Nodes, func(n api.TraceNode) bool { return n.Node != out.Subject })
	}
	return nil
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// ofDigits follows a commit, a manifest's digest or a build: every module that has a build of
// it, and every module whose source it is.
func (t *tracing) ofDigits(ctx context.Context, out *api.TraceOut) error {
	begin := hexOf(out.Subject)
	made, err := t.glance.builds.Of(ctx, t.c.Store, begin)
	if err != nil {
		return err
	}
	type key struct{ module, commit string }
	groups := map[key][]api.Build{}
	for _, build := range made {
		if build.Module == "" {
			continue
		}
		groups[key{build.Module, build.Commit}] = append(groups[key{build.Module, build.Commit}], build)
		out.Kind = kindOf(build, begin)
	}
	for _, module := range t.modules {
		if strings.HasPrefix(module.Commit, begin) && groups[key{module.Module, module.Commit}] == nil {
			groups[key{module.Module, module.Commit}] = []api.Build{}
			out.Kind = "commit"
		}
	}
	keys := make([]key, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.module+"\n"+a.commit, b.module+"\n"+b.commit) })
	for _, k := range keys {
		status := t.status(k.module)
		if status == nil {
			status = &api.ModuleStatus{Module: k.module, Repository: groups[k][0].Repository, Path: groups[k][0].Path}
		}
		digest := ""
		for _, build := range groups[k] {
			if digest == "" {
				digest = build.Digest
			}
		}
		if err := t.add(ctx, out, *status, k.commit, digest, groups[k]); err != nil {
			return err
		}
	}
	if len(out.Chains) == 0 {
		return t.unknownDigits(ctx, out, begin)
	}
	return nil
}

func kindOf(build api.Build, begin string) string {
	switch {
	case strings.HasPrefix(build.Commit, begin):
		return "commit"
	case strings.HasPrefix(hexOf(build.Digest), begin):
		return "digest"
	}
	return "build"
}

// unknownDigits says of a commit that stands at the head of a watched repository that it
// changed no module, and of any other that it is not known.
func (t *tracing) unknownDigits(ctx context.Context, out *api.TraceOut, begin string) error {
	repositories, err := builds.Repositories(ctx, t.c.Store)
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		if strings.HasPrefix(repository.Commit, begin) {
			out.Kind = "commit"
			out.Chains = append(out.Chains, api.TraceChain{
				Repository: repository.URL, Commit: repository.Commit, Seen: repository.LastSuccess, Nodes: []api.TraceNode{},
				Answer: "it is read, and changed no module", Next: "mesh repo show " + repository.URL,
			})
			return nil
		}
	}
	return &api.Error{
		Code: api.CodeNotFound, Message: fmt.Sprintf("no module was read or built at %s", out.Subject),
		Remedy: "mesh repo ls shows what was last read; commits that came between two looks are part of the later one",
	}
}

// add appends the chain of one module's manifest.
func (t *tracing) add(ctx context.Context, out *api.TraceOut, module api.ModuleStatus, commit, digest string, made []api.Build) error {
	chain := api.TraceChain{
		Module: module.Module, Repository: module.Repository, Path: module.Path, Commit: commit, Digest: digest,
		Builds: made, Nodes: []api.TraceNode{}, Current: digest != "" && digest == module.Digest,
	}
	if commit == "" {
		chain.Commit = module.Commit
	}
	if chain.Commit == module.Commit {
		chain.Seen = module.Seen
	}
	if made == nil && digest != "" {
		found, err := t.glance.builds.Of(ctx, t.c.Store, hexOf(digest))
		if err != nil {
			return err
		}
		chain.Builds = found
	}
	for _, build := range chain.Builds {
		if chain.Provenance == "" && build.Digest == digest {
			chain.Provenance = build.Provenance // the newest
		}
	}
	if digest != "" {
		pushes, err := t.pushes(ctx, module.Module, digest)
		if err != nil {
			return err
		}
		for _, node := range t.nodes {
			push, pushed := pushes[node.Name]
			if on := onTrace(node, module.Module, digest, push, pushed); on.State != stateAbsent {
				chain.Nodes = append(chain.Nodes, on)
			}
		}
	}
	chain.Answer, chain.Next = answer(chain, module)
	out.Chains = append(out.Chains, chain)
	return nil
}

// States of a manifest on a node.
const (
	stateRunning  = "running"
	stateFailing  = "failing"
	statePushed   = "pushed"
	stateDeclared = "declared"
	stateBlocked  = "blocked"
	stateReplaced = "replaced"
	stateAbsent   = "absent"
)

// pushes are the first declarations that told each node of a manifest, by node.
func (t *tracing) pushes(ctx context.Context, module, digest string) (map[string]api.TraceNode, error) {
	rows, err := t.c.Store.Query(ctx, `
SELECT DISTINCT ON (node) node, generation, pushed_at, pushed_by FROM mesh.declarations
WHERE body->'modules'->>$1 = $2 ORDER BY node, epoch, generation`, module, digest)
	if err != nil {
		return nil, fmt.Errorf("read declarations with %s: %w", module, err)
	}
	first := map[string]api.TraceNode{}
	var on api.TraceNode
	_, err = pgx.ForEachRow(rows, []any{&on.Node, &on.Generation, &on.PushedAt, &on.PushedBy}, func() error {
		first[on.Node] = on
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read declarations with %s: %w", module, err)
	}
	return first, nil
}

// onTrace says how far a manifest has come on a node; on begins as what was first pushed.
func onTrace(node api.Node, module, digest string, on api.TraceNode, pushed bool) api.TraceNode {
	on.Node, on.State = node.Name, stateAbsent
	at := slices.IndexFunc(node.Modules, func(m api.NodeModule) bool { return m.Module == module })
	if at < 0 {
		if pushed {
			on.State, on.Note = stateReplaced, "it was pushed, and the module is no longer assigned"
		}
		return on
	}
	here := node.Modules[at]
	on.Running = here.Running
	switch {
	case here.Running == digest && here.State == "failing":
		on.State, on.AppliedAt = stateFailing, node.AppliedAt
	case here.Running == digest:
		on.State, on.AppliedAt = stateRunning, node.AppliedAt
	case here.Blocked != "":
		on.State, on.Note = stateBlocked, here.Blocked
	case here.Declared == digest && pushed && toldNewest(node):
		on.State, on.Note = statePushed, node.Cause
	case here.Declared == digest:
		on.State = stateDeclared
	case pushed:
		on.State = stateReplaced
	default:
		return api.TraceNode{Node: node.Name, State: stateAbsent}
	}
	return on
}

// toldNewest says whether what the node should be is what it was last told.
func toldNewest(node api.Node) bool {
	return !slices.ContainsFunc(node.Reasons, func(r api.Reason) bool {
		return r.Code == delivery.DeclarationChanged || r.Code == delivery.NeverPushed
	})
}

// answer says in a sentence whether it went out, and the command that comes next.
func answer(chain api.TraceChain, module api.ModuleStatus) (text, next string) {
	by := map[string][]string{}
	for _, node := range chain.Nodes {
		by[node.State] = append(by[node.State], node.Node)
	}
	var parts []string
	say := func(state, words string) {
		if names := by[state]; len(names) > 0 {
			parts = append(parts, words+" "+strings.Join(names, ", "))
		}
	}
	say(stateRunning, "runs on")
	say(stateFailing, "fails on")
	say(statePushed, "is pushed to and not applied by")
	say(stateDeclared, "is built and not pushed to")
	say(stateBlocked, "is held back from")
	say(stateReplaced, "was replaced on")
	switch {
	case chain.Digest == "" && failedLast(chain):
		return "the build of it failed: " + chain.Builds[0].Error.Message, "mesh builds show " + chain.Builds[0].ID[:12]
	case chain.Digest == "" && waiting(chain):
		return "its build has not ended", "mesh builds logs -f " + chain.Builds[0].ID[:12]
	case chain.Digest == "" && module.State == "removed":
		return "the module is gone from its repository", ""
	case chain.Digest == "" && module.Error != "":
		return "it cannot be built: " + module.Error, "correct its module.json and commit"
	case chain.Digest == "":
		return "it is seen and not built", "mesh build --behind"
	case len(parts) == 0 && len(module.Nodes) == 0:
		return "it is built and assigned to no node", "mesh assign " + chain.Module + " --node N"
	case len(parts) == 0:
		return "it is built and was replaced before it was pushed anywhere", "mesh trace " + chain.Module
	case len(by[stateDeclared]) > 0:
		next = "mesh push " + strings.Join(by[stateDeclared], " ")
	case len(by[stateBlocked]) > 0:
		next = "mesh why " + chain.Module + " " + by[stateBlocked][0]
	case len(by[stateFailing])+len(by[statePushed]) > 0:
		next = "mesh node show " + slices.Concat(by[stateFailing], by[statePushed])[0]
	}
	return "it " + strings.Join(parts, "; "), next
}

func failedLast(chain api.TraceChain) bool {
	return len(chain.Builds) > 0 && chain.Builds[0].Error != nil
}

func waiting(chain api.TraceChain) bool {
	return len(chain.Builds) > 0 && chain.Builds[0].Ended.IsZero()
}
