package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/notice/noticetest"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
)

// send posts a delivery until it is answered with want.
func (p *private) send(address string, want int, d noticetest.Delivery) {
	p.t.Helper()
	reconciletest.Until(p.t, "a notice is answered with "+http.StatusText(want), func() bool {
		response, err := http.DefaultClient.Do(d.Request(p.t.Context(), address))
		if err != nil {
			p.t.Fatal(err)
		}
		return response.Body.Close() == nil && response.StatusCode == want
	})
}

func TestWebhookIsMadeOnceRotatedAndRemoved(t *testing.T) {
	p := newPrivate(t)
	p.catalogue(t.TempDir())
	url := p.repo.URL()
	p.command("repo", "hook", url).exits(exitFailed).warns("watches no repository")
	p.command("repo", "add", url).exits(exitDone)
	p.state(url, "ok")
	p.command("repo", "hook", url, "--remove", "-y").exits(exitFailed).warns("has no hook")
	p.command("repo", "hook", url, "--secret-file", file(t, "short\n")).exits(exitUsage).warns("16 to 256")
	p.command("repo", "hook", url, "--remove", "--rotate").exits(exitUsage)

	p.command("repo", "hook", url, "--secret-file", file(t, "canary-of-no-address\n")).exits(exitDone).warns("no catalogue takes notices yet")

	var handler http.Handler
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	address := server.URL + catalogue.HooksPath
	service, _ := p.catalogueWith(t.TempDir(), func(c *catalogue.Config) { c.Poll, c.HooksURL = time.Hour, address })
	handler = service.Hooks()
	reconciletest.Until(t, "the second catalogue says where it takes notices", func() bool {
		r := p.run("repo", "hook", url, "--rotate", "-o", "json")
		return strings.Contains(r.stdout, address)
	})

	// The secret is in the answer to the command that made it, and nowhere else.
	made := func(args ...string) string {
		t.Helper()
		var out hookMade
		r := p.run(append([]string{"repo", "hook", url, "-o", "json"}, args...)...).exits(exitDone)
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || len(out.Addresses) != 1 || out.Addresses[0] != address {
			t.Fatalf("%s, %v", r.stdout, err)
		}
		return out.Secret
	}
	p.command("repo", "hook", url).exits(exitFailed).warns("shown no second time", "--rotate")
	first := made("--rotate")
	push := func(secret string) noticetest.Delivery { return noticetest.GitHub("push", noticetest.Of(url), secret) }
	p.send(address, http.StatusAccepted, push(first))
	second := made("--rotate")
	p.send(address, http.StatusUnauthorized, push(first))
	p.send(address, http.StatusAccepted, push(second))
	p.send(address, http.StatusUnauthorized, noticetest.Generic("https://forge.example/stray", second))
	reconciletest.Until(t, "the notices are counted", func() bool {
		r := p.command("repo", "show", url).exits(exitDone)
		return strings.Contains(r.stdout, "has a webhook") && strings.Contains(r.stdout, "accepted") && strings.Contains(r.stdout, "bad-signature")
	})
	reconciletest.Until(t, "a stray notice is shown", func() bool {
		list := answer[api.RepositoryListOut](p.command("repo", "ls", "-o", "json"))
		return len(list.Notices) == 1 && list.Notices[0].Subject == "https://forge.example/stray" && list.Notices[0].Outcome == "unmatched"
	})
	p.command("repo", "ls").says("unmatched", "https://forge.example/stray")
	p.command("status").says("unmatched", "https://forge.example/stray")
	const own = "canary-given-0123456789-secret"
	p.command("repo", "hook", url, "--rotate", "--secret-file", file(t, own+"\n")).exits(exitDone).says("address  " + address)
	p.send(address, http.StatusAccepted, push(own))
	p.command("repo", "hook", url, "--remove", "-y").exits(exitDone).says("has no hook any more")
	p.send(address, http.StatusUnauthorized, push(own))
	p.hides("canary-of-no-address", first, second, strings.TrimPrefix(second, "whsec_"), own)
}

func TestPushIsSeenByItsWebhookWithoutWaitingForAPoll(t *testing.T) {
	p := newPrivate(t)
	service, _ := p.catalogueWith(t.TempDir(), func(c *catalogue.Config) { c.Poll, c.HooksURL = time.Hour, catalogue.HooksPath })
	server := httptest.NewServer(service.Hooks())
	t.Cleanup(server.Close)
	url := p.repo.URL()
	p.command("repo", "add", url).exits(exitDone)
	first := p.state(url, "ok").Commit
	r := p.run("repo", "hook", url).exits(exitDone).says("path     /hooks of the catalogue's --listen-hooks address", "secret   whsec_").warns("shown only now")
	_, secret, _ := strings.Cut(r.stdout, "secret   ")
	secret = strings.TrimSpace(secret)
	p.commit("second")
	p.send(server.URL+catalogue.HooksPath, http.StatusAccepted, noticetest.GitLab(noticetest.Of(url), secret))
	reconciletest.Until(t, "the commit is seen", func() bool { return p.state(url, "ok").Commit != first })
	if commit := p.state(url, "ok").Commit; commit != p.repo.Run("rev-parse", "HEAD") {
		t.Errorf("seen is %s", commit)
	}
	p.hides(secret)
}
