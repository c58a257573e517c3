package catalogue_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/notice"
	"github.com/mesh-control/mesh/catalogue/notice/noticetest"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
)

// hooks is a catalogue's webhooks, served, and what of it was logged.
type hooks struct {
	*running
	url string
	log *testenv.Buffer
}

func (r *running) hooks(log *testenv.Buffer) *hooks {
	server := httptest.NewServer(r.service.Hooks())
	r.t.Cleanup(server.Close)
	return &hooks{running: r, url: server.URL + catalogue.HooksPath, log: log}
}

// startHooks runs a catalogue that looks once an hour: what it sees before, a notice told it.
func startHooks(t *testing.T) *hooks {
	t.Helper()
	log := &testenv.Buffer{}
	return start(t, logged(log)).hooks(log)
}

func logged(log *testenv.Buffer) func(*catalogue.Config) {
	return func(c *catalogue.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

// hook gives a repository a secret, sealed as the controller does it.
func (r *running) hook(url, secret string) {
	r.t.Helper()
	r.seal(url, pki.RepositoryHook, []byte(secret))
}

// send posts a delivery and gives the status and the words of the answer.
func (h *hooks) send(d noticetest.Delivery) (int, string) {
	h.t.Helper()
	response, err := http.DefaultClient.Do(d.Request(h.t.Context(), h.url))
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// until sends until the status is want: what is known of the hooks may be a second old.
func (h *hooks) until(want int, d noticetest.Delivery) {
	h.t.Helper()
	h.eventually("answer to a notice", func() (bool, string) {
		status, text := h.send(d)
		return status == want, fmt.Sprintf("%d %s", status, text)
	})
}

// counted waits until so many notices of an outcome are stored under a subject.
func (h *hooks) counted(subject, outcome string, want int64) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%s notices of %q", outcome, subject), func() (bool, string) {
		var n int64
		err := h.pool.QueryRow(h.t.Context(), `SELECT coalesce(sum(count), 0) FROM catalogue.hooks WHERE subject = $1 AND outcome = $2`, subject, outcome).Scan(&n)
		return err == nil && n == want, fmt.Sprintf("%d, %v, want %d", n, err, want)
	})
}

func TestPushIsNoticedByEveryForgesWebhookWithoutWaitingForAPoll(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	h := startHooks(t)
	h.add(repo.URL(), "")
	h.at(repo.URL(), first)
	secret := notice.NewSecret()
	h.hook(repo.URL(), secret)
	for name, d := range noticetest.Pushes(noticetest.Of(repo.URL()), secret) {
		repo.Write("modules/m0/file", name)
		hash := repo.Commit(name)
		h.until(http.StatusAccepted, d)
		h.at(repo.URL(), hash)
	}
	if s := h.source("m0"); s.State != "ok" {
		t.Errorf("source is %+v", s)
	}
}

func TestSpellingsOfARepositorysAddressAreMatched(t *testing.T) {
	t.Parallel()
	h := startHooks(t)
	for watched, spellings := range map[string][]string{
		"https://forge.example/team/app.git": {
			"https://forge.example/team/app", "https://FORGE.example:443/team/app.git/", "ssh://git@forge.example/team/app.git",
			"git@forge.example:team/app.git", "ssh://forge.example:22/team/app", "http://forge.example/Team/App.git",
		},
		"git@forge.example:other/x":             {"https://forge.example/other/x.git"},
		"ssh://git@forge.example:2222/team/app": {"https://forge.example:2222/team/app.git"},
		"/srv/git/app.git":                      {"file:///srv/git/app.git", "/srv/git/app.git/"},
	} {
		h.exec(`INSERT INTO catalogue.repositories (url, suspended) VALUES ($1, true)`, watched)
		secret := notice.NewSecret()
		h.hook(watched, secret)
		for i, spelling := range spellings {
			h.until(http.StatusAccepted, noticetest.Generic(spelling, secret))
			h.counted(watched, "accepted", int64(i+1))
		}
	}
	// Two spellings that are both watched are both looked at, each with its own secret.
	secret := notice.NewSecret()
	for _, twin := range []string{"https://forge.example/twin", "git@forge.example:twin.git"} {
		h.exec(`INSERT INTO catalogue.repositories (url, suspended) VALUES ($1, true)`, twin)
		h.hook(twin, secret)
	}
	h.until(http.StatusAccepted, noticetest.Generic("https://forge.example/twin", secret))
	h.eventually("both twins asked for", func() (bool, string) {
		var n int
		err := h.pool.QueryRow(t.Context(), `SELECT count(refresh_requested) FROM catalogue.repositories WHERE url LIKE '%twin%'`).Scan(&n)
		return err == nil && n == 2, fmt.Sprint(n, err)
	})
}

// Whoever does not hold the secret hears the same whether the repository is watched or not.
func TestWithoutTheSecretNothingIsToldAndNothingIsDone(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	h := startHooks(t)
	h.add(repo.URL(), "")
	h.at(repo.URL(), first)
	secret := notice.NewSecret()
	h.hook(repo.URL(), secret)
	h.until(http.StatusOK, noticetest.GitHub("ping", noticetest.Of(repo.URL()), secret))
	bare := "https://forge.example/no-hook.git"
	h.exec(`INSERT INTO catalogue.repositories (url, suspended) VALUES ($1, true)`, bare)
	asks := h.counter("mesh_git_ls_remote_total")

	answers := map[string]bool{}
	unknown := "https://forge.example/unknown.git"
	for _, address := range []string{repo.URL(), bare, unknown} {
		status, text := h.send(noticetest.Generic(address, notice.NewSecret()))
		answers[fmt.Sprint(status, text)] = true
		if status != http.StatusUnauthorized || strings.Contains(text, address) {
			t.Errorf("%s: %d %s", address, status, text)
		}
	}
	if len(answers) != 1 {
		t.Errorf("the answers differ: %v", answers)
	}
	unsigned := noticetest.Generic(repo.URL(), secret)
	unsigned.Header.Del("X-Hub-Signature-256")
	if status, _ := h.send(unsigned); status != http.StatusUnauthorized {
		t.Errorf("unsigned: %d", status)
	}
	if status, _ := h.send(noticetest.Delivery{Header: http.Header{"X-Hub-Signature-256": {"00"}}, Body: []byte("{")}); status != http.StatusBadRequest {
		t.Errorf("malformed: %d", status)
	}
	response, err := http.Get(h.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", response.StatusCode)
	}
	h.counted(repo.URL(), "bad-signature", 1)
	h.counted(repo.URL(), "ignored", 1)
	h.counted(bare, "unmatched", 1)
	h.counted(unknown, "unmatched", 1)
	h.counted("", "unsigned", 1)
	h.counted("", "malformed", 1)
	if n := h.counter("mesh_catalogue_notices_total"); n < 6 {
		t.Errorf("%d notices in the metric", n)
	}
	if n := h.counter("mesh_git_ls_remote_total"); n != asks {
		t.Errorf("%d looks for notices that were refused or no push", n-asks)
	}
}

func TestLargeAndSlowNoticesAreBounded(t *testing.T) {
	t.Parallel()
	h := startHooks(t)
	const watched = "https://forge.example/app"
	h.exec(`INSERT INTO catalogue.repositories (url, suspended) VALUES ($1, true)`, watched)
	secret := notice.NewSecret()
	h.hook(watched, secret)
	large := func(bytes int) noticetest.Delivery {
		return noticetest.Generic(watched+strings.Repeat("/", bytes), secret)
	}
	// The address is too long to be one, so that a body that was read whole is malformed.
	if status, _ := h.send(large(3 << 20)); status != http.StatusBadRequest {
		t.Errorf("3 MiB: %d", status)
	}
	if status, _ := h.send(large(5 << 20)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("5 MiB: %d", status)
	}
	// Without a length, it is only seen while it comes.
	request := large(5<<20).Request(h.t.Context(), h.url)
	request.ContentLength = -1
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("5 MiB without a length: %d", response.StatusCode)
	}
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(h.url, "http://"), catalogue.HooksPath))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nX-Hub-Signature-256: 00\r\n\r\n{", catalogue.HooksPath)
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 408")) {
		t.Errorf("a body that never ends: %s, %v", answer, err)
	}
	h.counted("", "too-large", 2)
	h.counted("", "too-slow", 1)
}

// However many valid notices come, replayed ones among them, they are few looks, and the last
// push is seen.
func TestFloodOfNoticesIsFewLooks(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	h := startHooks(t)
	h.add(repo.URL(), "")
	h.at(repo.URL(), first)
	secret := notice.NewSecret()
	h.hook(repo.URL(), secret)
	d := noticetest.GitHub("push", noticetest.Of(repo.URL()), secret)
	asks := h.counter("mesh_git_ls_remote_total")
	began := time.Now()
	var last string
	const sent = 200
	for i := range sent {
		if i == sent-1 {
			repo.Write("modules/m0/file", "last")
			last = repo.Commit("last")
		}
		h.until(http.StatusAccepted, d)
	}
	h.at(repo.URL(), last)
	looks := h.counter("mesh_git_ls_remote_total") - asks
	if most := int(time.Since(began)/(5*time.Second)) + 2; looks > most || looks < 1 {
		t.Errorf("%d notices in %s are %d looks, want %d at most", sent, time.Since(began), looks, most)
	}
	h.counted(repo.URL(), "accepted", sent)
}

// A second process, which does not lead, takes a notice and the leader looks.
func TestNoticeIsTakenByACatalogueThatDoesNotLead(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	url := migrated.Database(t)
	leader := startOn(t, url)
	leader.eventually("leading", func() (bool, string) { return leader.service.Leading(), "not" })
	log := &testenv.Buffer{}
	second := startOn(t, url, logged(log)).hooks(log)
	leader.add(repo.URL(), "")
	leader.at(repo.URL(), first)
	// Sealed to the leader alone: the leader seals it on.
	second.eventually("known to the database", func() (bool, string) {
		var n int
		err := second.pool.QueryRow(t.Context(), `SELECT count(*) FROM catalogue.instances`).Scan(&n)
		return err == nil && n == 2, fmt.Sprint(n, err)
	})
	secret := notice.NewSecret()
	leader.hook(repo.URL(), secret)
	repo.Write("modules/m0/file", "two")
	hash := repo.Commit("second")
	second.until(http.StatusAccepted, noticetest.GitHub("push", noticetest.Of(repo.URL()), secret))
	leader.at(repo.URL(), hash)
	if second.service.Leading() || second.counter("mesh_git_ls_remote_total") != 0 {
		t.Error("the second process leads, or looked")
	}
}

func TestSecretThatWasReplacedOrRemovedIsRefused(t *testing.T) {
	t.Parallel()
	h := startHooks(t)
	const watched = "https://forge.example/app"
	h.exec(`INSERT INTO catalogue.repositories (url, suspended) VALUES ($1, true)`, watched)
	old, current := notice.NewSecret(), notice.NewSecret()
	h.hook(watched, old)
	h.until(http.StatusAccepted, noticetest.Generic(watched, old))
	h.hook(watched, current)
	h.until(http.StatusUnauthorized, noticetest.Generic(watched, old))
	h.until(http.StatusAccepted, noticetest.Generic(watched, current))
	h.exec(`SELECT catalogue.request_remove_secret($1, $2)`, watched, pki.RepositoryHook)
	h.until(http.StatusUnauthorized, noticetest.Generic(watched, current))

	// Sealed to a key that is gone, it proves nothing, and that is shown.
	h.hook(watched, current)
	h.exec(`UPDATE catalogue.sealed SET recipient = 'sha256:gone'`)
	h.until(http.StatusUnauthorized, noticetest.Generic(watched, current))
	h.eventually("sealed-away", func() (bool, string) {
		h.send(noticetest.Generic(watched, current))
		var n int
		err := h.pool.QueryRow(t.Context(), `SELECT count(*) FROM catalogue.hooks WHERE subject = $1 AND outcome = 'sealed-away'`, watched).Scan(&n)
		return err == nil && n == 1, fmt.Sprint(n, err)
	})

	h.exec(`SELECT catalogue.request_remove_repository($1)`, watched)
	var n int
	if err := h.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM catalogue.secrets) + (SELECT count(*) FROM catalogue.sealed)`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d secrets are left of a repository that is not watched, %v", n, err)
	}
	for _, secret := range []string{old, current, strings.TrimPrefix(current, "whsec_"), fmt.Sprintf("%x", current)} {
		h.absent(secret)
		if strings.Contains(h.log.String(), secret) {
			t.Errorf("%.10s… is in the log", secret)
		}
	}
}

// Strangers may name a new repository with each notice; what is kept of them is bounded.
func TestUnmatchedNoticesKeepFewRows(t *testing.T) {
	t.Parallel()
	h := startHooks(t)
	secret := notice.NewSecret()
	for i := range 400 {
		h.send(noticetest.Generic(fmt.Sprintf("https://forge.example/%d/%s", i, strings.Repeat("x", 1000)), secret))
	}
	h.eventually("few rows", func() (bool, string) {
		var rows, longest int
		var sum int64
		err := h.pool.QueryRow(t.Context(), `SELECT count(*), coalesce(max(length(subject)), 0), coalesce(sum(count), 0) FROM catalogue.hooks`).Scan(&rows, &longest, &sum)
		return err == nil && rows > 0 && rows <= 100 && longest <= 210, fmt.Sprint(rows, longest, sum, err)
	})
}

// A database that does not answer is told as such, and never as a wrong secret.
func TestNoticeWithoutADatabaseIsToBeSentAgain(t *testing.T) {
	t.Parallel()
	h := startHooks(t)
	const watched = "https://forge.example/app"
	h.exec(`INSERT INTO catalogue.repositories (url, suspended) VALUES ($1, true)`, watched)
	secret := notice.NewSecret()
	h.hook(watched, secret)
	h.exec(`ALTER TABLE catalogue.secrets RENAME TO away`)
	h.until(http.StatusServiceUnavailable, noticetest.Generic(watched, secret))
	h.exec(`ALTER TABLE catalogue.away RENAME TO secrets`)
	h.until(http.StatusAccepted, noticetest.Generic(watched, secret))
}
