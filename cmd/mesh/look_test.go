package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

func TestEveryAnswerIsJSONWhenAskedTo(t *testing.T) {
	m := newMesh(t)
	m.Join("n1")
	m.Source("web", "1")
	m.Hold(built("web", "1", nil))
	var shown result
	for _, command := range []string{
		"assign web --node n1", "status", "behind", "plan", "plan n1", "why web", "why web n1", "trace web", "graph", "builds", "doctor",
		"node ls", "node show n1", "node label n1 rack=a", "repo add https://forge.example/more.git", "repo ls", "repo show " + repository,
		"secret ls", "builder ls", "builder issue --node n1", "version", "repo refresh " + repository,
		"unassign web --node n1 -y", "repo rm " + repository + " -y", "node forget n1 -y",
	} {
		r := m.run(append(strings.Fields(command), "-o", "json")...)
		if strings.HasPrefix(command, "repo show") {
			shown = r
		}
		if r.code != exitDone && command != "doctor" {
			r.exits(exitDone)
		}
		if value := answer[map[string]json.RawMessage](r); len(value) == 0 {
			t.Errorf("%s: an empty answer", command)
		}
		if r.stderr != "" {
			t.Errorf("%s: %s", command, r.stderr)
		}
	}
	if shown := answer[repositoryShown](shown); shown.Repository.URL != repository || len(shown.Modules) != 1 || shown.Modules[0].Module != "web" {
		t.Errorf("repo show: %+v", shown)
	}
	check := m.run("doctor", "-o", "json")
	if ok := answer[api.SelfCheck](check).OK; ok != (check.code == exitDone) || !ok && check.code != exitFailed {
		t.Errorf("doctor finds %v, and exits %d", ok, check.code)
	}
}

func TestNodesAndAssignments(t *testing.T) {
	m := newMesh(t)
	n := m.Join("n1")
	listen(n, works)
	m.Hold(built("web", "1", func(m *schema.Manifest) {
		m.Settings = map[string]schema.Setting{"colour": {Type: "string", Default: []byte(`"red"`)}}
	}))
	m.run("version").exits(exitDone).says("mesh dev\n", "controller test of mesh lab")
	m.run("node", "ls").exits(exitDone).says("n1", "10.0.0.1")
	m.run("node", "label", "n1", "rack=a").exits(exitDone).says("n1 map[rack:a]")
	m.run("node", "show", "n9").exits(exitFailed).warns("mesh: node show: ", "n9")

	m.run("assign", "nothing", "--node", "n1").exits(exitFailed).warns("mesh: assign: ", "nothing")
	m.run("assign", "web", "--node", "n9").exits(exitFailed).warns("n9")
	m.run("assign", "web", "--node", "n1", "--set", "size=1").exits(exitUsage).warns("size")
	m.run("assign", "web", "--node", "n1", "--set", "colour=blue").exits(exitDone).says("web is assigned to n1; mesh plan shows")
	m.run("push", "n1", "-y").exits(exitDone)
	m.run("node", "show", "n1").exits(exitDone).says("web", "running", built("web", "1", nil).Digest[7:19])
	m.run("why", "web", "n1").exits(exitDone).says("applied", "generation 1")
	m.run("why", "nothing").exits(exitFailed).warns("there is no module nothing")
	m.run("status").exits(exitDone).says("mesh lab, version test", "n1", "web", "no builders")

	m.run("unassign", "web", "--node", "n1").exits(exitUsage).warns("-y does what is shown")
	m.run("unassign", "web", "--node", "n1", "-y").exits(exitDone).says("web is no longer assigned to n1")
	m.run("plan").exits(exitDone).says("- remove", "web/run")
	m.run("push", "--behind", "-y").exits(exitDone)
	m.run("unassign", "web", "--node", "n1", "-y").exits(exitFailed)

	m.run("node", "forget", "n1").exits(exitUsage)
	m.run("node", "forget", "n1", "-y").exits(exitDone)
	m.run("node", "ls").exits(exitDone).says("no nodes")
}

func TestSecretsAreGivenAndNeverShown(t *testing.T) {
	m := newMesh(t)
	m.Join("n1")
	m.Hold(built("web", "1", func(m *schema.Manifest) {
		m.OwnSecrets = map[string]schema.OwnSecret{"key": {Path: "/etc/web/key", Given: true}}
	}))
	m.run("assign", "web", "--node", "n1").exits(exitDone)
	m.run("plan", "n1", "--exit-code").exits(exitBehind).says("! web is held back: ", "key").warns("hint: ", "mesh secret give web key --node n1")

	const value = "the value 4711"
	give := []string{"secret", "give", "web", "key", "--node", "n1"}
	m.run(give...).exits(exitUsage).warns("the value is empty")
	m.runWith(t.Context(), strings.Repeat("x", maxSecret+1), nil, give...).exits(exitUsage).warns("larger than 64 KiB")
	m.run("secret", "give", "web", "other", "--node", "n1", "--file", m.context).exits(exitFailed).warns("other")
	path := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	all := []result{
		m.runWith(t.Context(), value, nil, give...).exits(exitDone).says("secret key of web is sealed to n1"),
		m.run(append(give, "--file", path)...).exits(exitDone),
		m.run("secret", "ls").exits(exitDone).says("n1", "web", "key", "given", "yes"),
		m.run("secret", "ls", "-o", "json").exits(exitDone),
		m.run("plan", "n1").exits(exitDone).says("web/run"),
		m.run("node", "show", "n1").exits(exitDone),
	}
	for _, r := range all {
		if strings.Contains(r.stdout+r.stderr, value) {
			t.Errorf("%s shows the secret", r.command)
		}
	}
}

func TestAnotherTokenAndAnotherCertificateAreRefused(t *testing.T) {
	m := newMesh(t)
	file := m.file
	file.Token = "another"
	m.save(file)
	m.run("status").exits(exitFailed).warns("mesh: status: the token is not known", "hint: use the token of your operator context")
	file = m.file
	file.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	m.save(file)
	r := m.run("status").exits(exitUnreachable).warns("does not match the fingerprint")
	if strings.Contains(r.stdout+r.stderr, m.file.Token) {
		t.Errorf("the token is shown:\n%s", r.stderr)
	}
}
