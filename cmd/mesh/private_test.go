package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// private is a mesh with a real catalogue and real builders, and what all of them said.
type private struct {
	*mesh
	store    *registrytest.Registry
	said     *testenv.Buffer // logs and everything the command line printed
	repo     *testenv.Repo
	builders map[string]*reconciletest.Machine
}

func newPrivate(t *testing.T) *private {
	p := &private{mesh: newMesh(t), store: registrytest.Start(t), said: &testenv.Buffer{}, repo: testenv.Git(t), builders: map[string]*reconciletest.Machine{}}
	p.commit("first")
	p.Hold(built("builder", "1", func(m *schema.Manifest) {
		m.OwnSecrets = map[string]schema.OwnSecret{
			"broker": {Path: "/etc/mesh/builder/secrets/broker.json", Given: true},
			"key":    {Path: "/etc/mesh/builder/secrets/key", Given: true},
		}
	}))
	return p
}

func (p *private) commit(text string) {
	p.repo.Write("site/module.json", `{"name": "site", "artifacts": {"files": {"kind": "archive", "path": "files"}},
		"resources": [{"id": "files", "type": "archive", "artifact": "files", "path": "/srv/site"}]}`)
	p.repo.Write("site/files/index.html", text)
	p.repo.Commit(text)
}

// command runs a command, and keeps what it said.
func (p *private) command(args ...string) result {
	p.t.Helper()
	r := p.run(args...)
	fmt.Fprintln(p.said, r.stdout, r.stderr)
	return r
}

func (p *private) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(p.said, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// catalogue runs a catalogue with the key in dir until the function given back is called.
func (p *private) catalogue(dir string) (stop func()) {
	p.t.Helper()
	_, stop = p.catalogueWith(dir, func(*catalogue.Config) {})
	return stop
}

// catalogueWith runs a catalogue that differs from the usual one.
func (p *private) catalogueWith(dir string, change func(*catalogue.Config)) (service *catalogue.Service, stop func()) {
	p.t.Helper()
	key, err := catalogue.LoadKey(filepath.Join(dir, "key"))
	if err != nil {
		p.t.Fatal(err)
	}
	pool, err := store.Open(p.t.Context(), p.Config.Database)
	if err != nil {
		p.t.Fatal(err)
	}
	config := catalogue.Config{Poll: time.Second, Key: key, Source: source.Config{Dir: filepath.Join(dir, "work")}, Log: p.log()}
	change(&config)
	if service, err = catalogue.New(pool, config); err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := service.Run(ctx); err != nil {
			p.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		pool.Close()
	})
	p.t.Cleanup(stop)
	return service, stop
}

// builder issues a builder for a node, which the host starts with what it was sealed.
func (p *private) builder(node string) (stop func()) {
	p.t.Helper()
	n := p.Join(node)
	secrets := make(chan map[string][]byte, 16)
	n.Listen(func(d schema.Declaration) {
		found := map[string][]byte{}
		for _, r := range d.Resources {
			if r.Sealed == nil {
				continue
			}
			value, err := pki.Open(n.Sealing, *r.Sealed)
			if err != nil {
				p.t.Error(err)
			}
			found[r.ID] = value
		}
		n.Report(func(r *schema.Report) { reconciletest.Applied(r, d) })
		secrets <- found
	})
	p.command("assign", "builder", "--node", node).exits(exitDone)
	p.command("builder", "issue", "--node", node).exits(exitDone)
	p.command("push", node, "-y").exits(exitDone)
	opened := <-secrets
	var broker schema.Credential
	if err := json.Unmarshal(opened["builder/secret.broker"], &broker); err != nil {
		p.t.Fatal(err)
	}
	key := opened["builder/secret.key"]
	b := &builder.Builder{
		Name: node, Work: p.t.TempDir(), Registry: p.store.Client(p.t), Log: p.log(),
		Open: func(url string, sealed schema.Sealed) ([]byte, error) {
			return pki.OpenRepository(key, pki.RepositoryCredential, url, sealed)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := b.Start(ctx); err != nil {
		p.t.Fatal(err)
	}
	conn := bus.Dial(ctx, bus.Config{URL: broker.URL, Fingerprints: []string{broker.Fingerprint}, Name: node, Log: p.log()})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = (&builder.Worker{Builder: b, Bus: conn, Log: p.log()}).Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		conn.Close()
		if err := b.Close(); err != nil {
			p.t.Error(err)
		}
	})
	p.t.Cleanup(stop)
	p.AwaitReader(bus.Builds)
	return stop
}

// state waits until a repository is in a state.
func (p *private) state(url, want string) api.Repository {
	p.t.Helper()
	var found api.Repository
	reconciletest.Until(p.t, url+" is "+want, func() bool {
		list, err := api.RepositoryList.Do(p.t.Context(), p, api.None{})
		if err != nil {
			p.t.Fatal(err)
		}
		for _, r := range list.Repositories {
			if r.URL == url {
				found = r
			}
		}
		return found.State == want
	})
	return found
}

// published builds what is behind, and checks that the registry has the manifest.
func (p *private) published() {
	p.t.Helper()
	reconciletest.Until(p.t, "the commit is seen", func() bool {
		behind := answer[api.BehindOut](p.command("behind", "-o", "json"))
		return len(behind.Modules) > 0
	})
	p.command("build", "--behind").exits(exitDone).says("built     site")
	var digest string
	for _, m := range answer[api.Status](p.command("status", "-o", "json")).Modules {
		if m.Module == "site" {
			digest = m.Digest
		}
	}
	manifest, err := p.store.Client(p.t).Manifest(p.t.Context(), "site", digest)
	if err != nil || manifest.Source.Commit != p.repo.Run("rev-parse", "HEAD") {
		p.t.Errorf("the registry's manifest %s is of commit %s, %v", digest, manifest.Source.Commit, err)
	}
}

// hides checks that secrets stand in nothing that was said, logged or stored.
func (p *private) hides(secrets ...string) {
	p.t.Helper()
	dump, err := exec.Command("pg_dump", "--inserts", "--no-owner", p.Config.Database).CombinedOutput()
	if err != nil {
		p.t.Fatalf("pg_dump: %v: %s", err, dump)
	}
	for place, text := range map[string]string{"database": string(dump), "logs and answers": p.said.String(), "controller's log": p.Logged.String()} {
		for _, secret := range secrets {
			for _, form := range []string{secret, url.QueryEscape(secret), fmt.Sprintf("%x", secret), strings.ReplaceAll(secret, "\n", `\n`)} {
				if strings.Contains(text, form) {
					p.t.Errorf("%s: a secret stands in the clear (%.6s…)", place, form)
				}
			}
		}
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// forge serves a repository over HTTP to whoever has the token, and answers as it is told.
type forge struct {
	url    string
	token  atomic.Value // string
	status atomic.Int32 // answered in place of everything when it is not 0
}

func newForge(t *testing.T, repo *testenv.Repo, token string) *forge {
	t.Helper()
	behind, err := url.Parse(repo.URL())
	if err != nil {
		t.Fatal(err)
	}
	f := &forge{}
	f.token.Store(token)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: behind.Scheme, Host: behind.Host})
		r.Out.Header.Del("Authorization")
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := f.status.Load(); status != 0 {
			http.Error(w, "told so", int(status))
			return
		}
		if _, password, _ := r.BasicAuth(); password != f.token.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.url = server.URL + behind.Path
	return f
}

func TestPrivateRepositoryOverHTTPFromCommitToPublishedManifest(t *testing.T) {
	const first, second = "canary-token-3141592653/+first", "canary-token-2718281828/+second"
	p := newPrivate(t)
	f := newForge(t, p.repo, first)
	dir := t.TempDir()
	stopCatalogue := p.catalogue(dir)
	stopBuilder := p.builder("n1")

	p.command("repo", "add", f.url).exits(exitDone)
	p.state(f.url, "AuthenticationFailed")
	p.command("repo", "show", f.url).exits(exitDone).says("AuthenticationFailed").warns("mesh repo credential " + f.url)
	p.command("doctor").says("repository.AuthenticationFailed", "it was never read")

	give := func(token string) {
		t.Helper()
		p.command("repo", "credential", f.url, "--token-file", file(t, token+"\n")).exits(exitDone).says("token of " + f.url).warns("is read over http")
	}
	give("canary-token-wrong")
	if r := p.state(f.url, "AuthenticationFailed"); r.Credential == nil || r.Credential.Kind != api.CredentialToken {
		t.Errorf("repository %+v", r)
	}
	give(first)
	p.state(f.url, "ok")
	p.command("repo", "credential", f.url).exits(exitDone).says("token of "+f.url, "builders n1")
	p.published()

	// A builder that comes later can read it as well.
	stopBuilder()
	p.builder("n2")
	reconciletest.Until(t, "the credential is sealed to n2", func() bool {
		c := p.state(f.url, "ok").Credential
		return c != nil && strings.Join(c.Builders, " ") == "n1 n2"
	})
	p.commit("second")
	p.published()

	// 200, 401, 503, 200, and another token meanwhile: each is told, and nothing is restarted.
	read := p.state(f.url, "ok").LastSuccess
	f.token.Store(second)
	p.state(f.url, "AuthenticationFailed")
	f.status.Store(http.StatusServiceUnavailable)
	if r := p.state(f.url, "Unreachable"); r.LastSuccess.Before(read) || r.Message == "" {
		t.Errorf("repository %+v, read before at %s", r, read)
	}
	f.status.Store(0)
	p.state(f.url, "AuthenticationFailed")
	give(second)
	p.state(f.url, "ok")
	p.commit("third")
	p.published()

	// The catalogue comes back without its key.
	stopCatalogue()
	p.catalogue(t.TempDir())
	p.command("repo", "refresh", f.url)
	if r := p.state(f.url, "AuthenticationFailed"); !strings.Contains(r.Message, "give it again") {
		t.Errorf("message %q", r.Message)
	}
	give(second)
	p.state(f.url, "ok")

	p.command("repo", "credential", f.url, "--remove", "-y").exits(exitDone)
	if r := p.state(f.url, "AuthenticationFailed"); r.Credential != nil {
		t.Errorf("repository %+v", r)
	}
	p.command("repo", "credential", f.url, "--remove", "-y").exits(exitFailed).warns("has no credential")
	p.command("build", f.url, "site").exits(exitFailed).says("AuthenticationFailed")
	for _, build := range answer[api.BuildListOut](p.command("builds", "-o", "json")).Builds {
		p.command("builds", "show", build.ID)
		p.command("builds", "logs", build.ID).exits(exitDone)
	}
	p.command("repo", "ls", "-o", "json")
	p.command("builder", "ls", "-o", "json")
	p.hides("canary-token-wrong", first, second)
}

func TestPrivateRepositoryOverSSHFromCommitToPublishedManifest(t *testing.T) {
	p := newPrivate(t)
	server := testenv.GitSSH(t, filepath.Dir(p.repo.Bare))
	address := server.URL("repo.git")
	p.catalogue(t.TempDir())
	p.builder("n1")
	p.command("repo", "add", address).exits(exitDone)
	p.state(address, "AuthenticationFailed")

	credential := server.Credential()
	known := func(lines ...string) string {
		var text []string
		for _, line := range lines {
			key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, knownhosts.Line([]string{knownhosts.HashHostname(knownhosts.Normalize(server.Address))}, key))
		}
		return file(t, strings.Join(text, "\n")+"\n")
	}
	key := file(t, credential.PrivateKey)
	p.command("repo", "credential", address, "--ssh-key", key).exits(exitUsage)
	p.command("repo", "credential", address, "--token-file", key).exits(exitUsage).warns("an ssh address is read with a private key")
	p.command("repo", "credential", address, "--ssh-key", key, "--known-hosts", file(t, "")).exits(exitUsage).warns("holds no key of "+server.Address, "ssh-keyscan")
	stranger := testenv.GitSSH(t, t.TempDir()).HostKeys[0]
	p.command("repo", "credential", address, "--ssh-key", key, "--known-hosts", known(stranger)).exits(exitDone)
	p.state(address, "HostKeyUnknown")
	p.command("repo", "credential", address, "--ssh-key", key, "--known-hosts", known(server.HostKeys...)).exits(exitDone).says("ssh-key of " + address)
	p.state(address, "ok")
	p.published()
	lines := strings.Split(strings.TrimSpace(credential.PrivateKey), "\n")
	p.hides(credential.PrivateKey, lines[len(lines)/2])
}
