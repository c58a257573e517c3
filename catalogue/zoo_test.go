package catalogue_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/schema"
)

func TestZooBranchDeletedAndRecreatedAcrossARestart(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 2)
	first := repo.Commit("first")
	repo.Run("branch", "live")
	database := migrated.Database(t)
	url := repo.URL()
	r := startOn(t, database)
	r.add(url, "live")
	r.at(url, first)
	repo.Run("branch", "-D", "live")
	r.refresh(url)
	if x := r.inState(url, "RefNotFound"); x.Commit != first || x.LastSuccess.Year() == 1970 {
		t.Errorf("%+v", x)
	}
	r.end()
	repo.Remove("modules/m1")
	repo.Write("modules/m0/file", "two")
	second := repo.Commit("second")
	r = startOn(t, database)
	r.refresh(url)
	r.inState(url, "RefNotFound")
	for _, module := range []string{"m0", "m1"} {
		if s := r.source(module); s.State != "ok" || s.Commit != first {
			t.Errorf("with its branch gone %s is %+v", module, s)
		}
	}
	repo.Run("branch", "live")
	r.refresh(url)
	r.at(url, second)
	if s := r.source("m0"); s.State != "ok" || s.Commit != second {
		t.Errorf("m0 is %+v", s)
	}
	if s := r.source("m1"); s.State != "removed" {
		t.Errorf("m1 is %+v", s)
	}
}

func TestZooTagsAndCommitsAreFollowed(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	repo.Run("tag", "--annotate", "--message", "x", "v1")
	repo.Write("modules/m0/file", "two")
	second := repo.Commit("second")
	server := testenv.GitSSH(t, filepath.Dir(repo.Bare))
	name := filepath.Base(repo.Bare)
	r := start(t)
	tagged, pinned := server.URL(name), repo.URL()
	r.add(tagged, "v1")
	r.give(tagged, server.Credential())
	r.at(tagged, first)
	r.exec(`SELECT catalogue.request_remove_repository($1)`, tagged)
	r.eventually("the module of the tag", func() (bool, string) { s := r.source("m0"); return s.State == "removed", fmt.Sprint(s) })
	r.add(pinned, first)
	r.at(pinned, first)
	if x := r.repository(pinned); x.HeadRef != "refs/tags/v1" {
		t.Errorf("the pinned commit goes by %+v", x)
	}
	repo.Run("tag", "--delete", "v1")
	fetched, asked := r.counter("mesh_git_fetch_total"), r.counter("mesh_git_ls_remote_total")
	r.refresh(pinned)
	r.eventually("another look", func() (bool, string) { return r.counter("mesh_git_ls_remote_total") > asked, "not yet" })
	r.refresh(pinned)
	r.eventually("the look after it", func() (bool, string) { return r.counter("mesh_git_ls_remote_total") > asked+1, "not yet" })
	if n := r.counter("mesh_git_fetch_total"); n != fetched {
		t.Errorf("a commit that cannot move was fetched %d times more", n-fetched)
	}
	r.add(tagged, "main")
	r.give(tagged, server.Credential())
	r.at(tagged, second)
}

// A forge whose answers change while the credential is rotated: each answer has its state,
// recovery needs no restart, and no token is in anything that is shown or kept.
func TestZooCredentialsExpireAndAreRotated(t *testing.T) {
	t.Parallel()
	const old, rotated = "canary-old-token", "canary-new-token"
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	var accepted atomic.Value
	var down atomic.Bool
	accepted.Store(old)
	url := repo.URLBehind(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		_, token, _ := r.BasicAuth()
		switch {
		case down.Load():
			http.Error(w, "on holiday, said "+token, http.StatusServiceUnavailable)
			return nil
		case token != accepted.Load():
			http.Error(w, "do not know "+token, http.StatusUnauthorized)
			return nil
		}
		return w
	})
	healthy := testenv.Git(t)
	healthy.Write("modules/h/module.json", module("h"))
	healthy.Commit("beside it")
	said := &testenv.Buffer{}
	r := start(t, func(c *catalogue.Config) {
		c.Log = slog.New(slog.NewTextHandler(said, nil))
	})
	r.add(url, "")
	r.give(url, &git.Credential{Password: old})
	r.add(healthy.URL(), "")
	r.at(url, first)
	accepted.Store(rotated)
	r.refresh(url)
	if x := r.inState(url, "AuthenticationFailed"); x.Commit != first {
		t.Errorf("%+v", x)
	}
	down.Store(true)
	r.refresh(url)
	r.inState(url, "Unreachable")
	if s := r.source("m0"); s.State != "ok" {
		t.Errorf("m0 is %+v", s)
	}
	healthy.Write("modules/h/file", "x")
	beside := healthy.Commit("while the other is down")
	r.refresh(healthy.URL())
	r.at(healthy.URL(), beside)
	repo.Write("modules/m0/file", "two")
	second := repo.Commit("second")
	down.Store(false)
	r.give(url, &git.Credential{Password: rotated})
	r.at(url, second)
	for _, token := range []string{old, rotated} {
		if strings.Contains(said.String(), token) {
			t.Error("a token is in the log")
		}
		r.absent(token)
	}
}

// give seals what a repository is read with to the catalogue, as the controller does.
func (r *running) give(url string, credential *git.Credential) {
	r.t.Helper()
	plaintext, err := json.Marshal(credential)
	if err != nil {
		r.t.Fatal(err)
	}
	r.seal(url, pki.RepositoryCredential, plaintext)
}

func (r *running) seal(url, purpose string, plaintext []byte) {
	r.t.Helper()
	var version int64
	if err := r.pool.QueryRow(r.t.Context(), `SELECT catalogue.request_secret_version()`).Scan(&version); err != nil {
		r.t.Fatal(err)
	}
	sealed, err := pki.SealRepository(r.key.Public, purpose, url, version, plaintext)
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec(`SELECT catalogue.request_set_secret($1, $2, 'kind', $3, $4)`, url, purpose, version, []schema.Sealed{sealed})
}

// absent looks for a text in every row the catalogue wrote.
func (r *running) absent(text string) {
	r.t.Helper()
	for _, table := range []string{"repositories", "sources", "changes", "secrets", "sealed", "hooks"} {
		var n int
		if err := r.pool.QueryRow(r.t.Context(), `SELECT count(*) FROM catalogue.`+table+` t WHERE t::text LIKE '%' || $1 || '%'`, text).Scan(&n); err != nil {
			r.t.Fatal(err)
		}
		if n > 0 {
			r.t.Errorf("%d rows of %s hold %q", n, table, text)
		}
	}
}
