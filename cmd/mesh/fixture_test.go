package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/schema"
)

const repository = reconciletest.Repository

var (
	digest = reconciletest.Digest
	hex40  = reconciletest.Hex40
)

// operator is somebody at the command line, with a context file.
type operator struct {
	t       *testing.T
	file    apiclient.ContextFile
	context string // path of file
}

// operatorOf serves a controller's methods over HTTPS on loopback, as mesh-controller does,
// and writes the context file with which the command line finds it.
func operatorOf(t *testing.T, handler http.Handler) *operator {
	t.Helper()
	authority, err := pki.NewCA("lab")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := authority.Issue("controller", []string{pki.ControllerName})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	if server.TLS, err = pki.ServerConfig(certificate, key); err != nil {
		t.Fatal(err)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	o := &operator{t: t, context: filepath.Join(t.TempDir(), "context.json"), file: apiclient.ContextFile{
		Mesh: "lab", URL: server.URL, Fingerprint: pki.Fingerprint(authority.Cert), Token: rand.Text(),
	}}
	o.save(o.file)
	return o
}

// save writes the context file.
func (o *operator) save(file apiclient.ContextFile) {
	o.t.Helper()
	text, err := json.Marshal(file)
	if err == nil {
		err = os.WriteFile(o.context, text, 0o600)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// mesh is a controller on real servers with an operator who may do everything.
type mesh struct {
	*reconciletest.Mesh
	*operator
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	m := reconciletest.New(t)
	reconciletest.Until(t, "the controller is ready", m.Host.Ready)
	o := operatorOf(t, m.Handler())
	m.Transact(func(tx pgx.Tx) error { return extension.PutOperator(t.Context(), tx, "anna", o.file.Token) })
	return &mesh{m, o}
}

// result is what a command said and how it ended.
type result struct {
	t              *testing.T
	command        string
	code           int
	stdout, stderr string
}

// run runs a command without a terminal.
func (o *operator) run(args ...string) result {
	o.t.Helper()
	return o.runWith(o.t.Context(), "", nil, args...)
}

// runWith runs a command with an input, and shows what it writes to stderr to heard as well.
func (o *operator) runWith(ctx context.Context, stdin string, heard io.Writer, args ...string) result {
	o.t.Helper()
	var stdout, stderr bytes.Buffer
	complaints := io.Writer(&stderr)
	if heard != nil {
		complaints = io.MultiWriter(&stderr, heard)
	}
	code := run(ctx, args, strings.NewReader(stdin), &stdout, complaints, func(name string) string {
		if name == "MESH_CONTEXT" {
			return o.context
		}
		return ""
	})
	return result{t: o.t, command: "mesh " + strings.Join(args, " "), code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// exits checks the exit code.
func (r result) exits(want int) result {
	r.t.Helper()
	if r.code != want {
		r.t.Fatalf("%s: exit code %d, want %d\n%s\n%s", r.command, r.code, want, r.stdout, r.stderr)
	}
	return r
}

// says checks what stands in the output.
func (r result) says(words ...string) result {
	r.t.Helper()
	return r.contains("stdout", r.stdout, words)
}

// warns checks what stands in the complaints.
func (r result) warns(words ...string) result {
	r.t.Helper()
	return r.contains("stderr", r.stderr, words)
}

func (r result) contains(stream, text string, words []string) result {
	r.t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			r.t.Errorf("%s: %s does not say %q:\n%s", r.command, stream, word, text)
		}
	}
	return r
}

// lines counts the output's lines that begin so.
func (r result) lines(start string) int {
	count := 0
	for line := range strings.Lines(r.stdout) {
		if strings.HasPrefix(line, start) {
			count++
		}
	}
	return count
}

// answer reads the whole output as one JSON value.
func answer[T any](r result) T {
	r.t.Helper()
	var value T
	if err := json.Unmarshal([]byte(r.stdout), &value); err != nil {
		r.t.Fatalf("%s: %v:\n%s", r.command, err, r.stdout)
	}
	return value
}

// listen has a node's host report what apply makes of each declaration: "" is applied, else
// the cause of its failure.
func listen(n *reconciletest.Machine, apply func(schema.Declaration) string) {
	n.Listen(func(d schema.Declaration) {
		n.Report(func(r *schema.Report) {
			if r.Cause = apply(d); r.Cause != "" {
				r.Seen, r.Outcome = d.Generation, "failed"
				return
			}
			reconciletest.Applied(r, d)
		})
	})
}

func works(schema.Declaration) string { return "" }

// built is the result of building a module of one container.
func built(module, version string, change func(*schema.Manifest)) schema.Result {
	return reconciletest.Result(reconciletest.Manifest(module, version, func(m *schema.Manifest) {
		reconciletest.Current(m)
		if change != nil {
			change(m)
		}
	}))
}

// broken is the result of building a module that could not be.
func broken(module, version, message string) schema.Result {
	r := built(module, version, nil)
	r.Outcome, r.Digest, r.Manifest = schema.OutcomeFailed, "", nil
	r.Error = &schema.BuildError{Reason: "ToolchainFailed", Message: message, Remedy: "correct it and commit"}
	return r
}

// builder plays a builder, which answers each job with what build makes of its module.
func (m *mesh) builder(node string, build func(module string) schema.Result) {
	m.t.Helper()
	m.Builder(node, func(work reconciletest.Work) *schema.Result {
		work.Say(schema.PhaseClone, "")
		work.Say(schema.PhaseClone, "cloning "+work.Path)
		r := build(strings.TrimPrefix(cmp.Or(work.Path, work.Repository), "modules/"))
		return &r
	})
	m.AwaitReader(bus.Builds)
}
