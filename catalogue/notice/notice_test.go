package notice_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/catalogue/notice"
	"github.com/mesh-control/mesh/catalogue/notice/noticetest"
	"github.com/mesh-control/mesh/internal/giturl"
)

var app = noticetest.Addresses{
	Clone: "https://forge.example/team/app.git", SSH: "git@forge.example:team/app.git", HTML: "https://forge.example/team/app",
}

func read(t *testing.T, d noticetest.Delivery) *notice.Notice {
	t.Helper()
	n, err := notice.Read(d.Header, d.Body)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryForgesPushIsProvedByItsSecretAlone(t *testing.T) {
	t.Parallel()
	secret := notice.NewSecret()
	for name, d := range noticetest.Pushes(app, secret) {
		n := read(t, d)
		if !n.Push || n.Forge != strings.Fields(strings.Replace(name, "forgejo", "gitea", 1))[0] {
			t.Errorf("%s: read as %+v", name, n)
		}
		for _, u := range n.Repositories {
			if u.Key() != "forge.example/team/app" {
				t.Errorf("%s: names %s", name, u)
			}
		}
		if !n.ProvedBy(secret) {
			t.Errorf("%s: the right secret does not prove it", name)
		}
		for _, wrong := range []string{"", notice.NewSecret(), secret + "x", secret[:len(secret)-1], "whsec_", strings.ToLower(secret)} {
			if n.ProvedBy(wrong) {
				t.Errorf("%s: %q proves it", name, wrong)
			}
		}
	}
}

func TestAlteredNoticeIsNotProved(t *testing.T) {
	t.Parallel()
	secret := notice.NewSecret()
	for name, d := range noticetest.Pushes(app, secret) {
		if name == "gitlab token" {
			continue // a token says nothing about the body
		}
		altered := noticetest.Delivery{Header: d.Header, Body: []byte(strings.Replace(string(d.Body), "app", "zap", 1))}
		if n, err := notice.Read(altered.Header, altered.Body); err == nil && n.ProvedBy(secret) {
			t.Errorf("%s: proved with another body", name)
		}
		for header := range d.Header {
			if !strings.Contains(header, "ignature") && !strings.HasPrefix(header, "Webhook-") || header == "X-Gogs-Signature" {
				continue
			}
			wrong := noticetest.Delivery{Header: d.Header.Clone(), Body: d.Body}
			for _, value := range []string{"sha256=", "sha256=00", "v1,", "v1,AAAA", "v2," + d.Header.Get(header), strings.Repeat("0", 64), "\x00"} {
				wrong.Header.Set(header, value)
				if n, err := notice.Read(wrong.Header, wrong.Body); err == nil && n.ProvedBy(secret) {
					t.Errorf("%s: proved with %s: %q", name, header, value)
				}
			}
		}
	}
}

// A token beside a signature that does not fit is not enough.
func TestEveryProofGivenMustHold(t *testing.T) {
	t.Parallel()
	secret := notice.NewSecret()
	d := noticetest.Pushes(app, secret)["gitlab both"]
	d.Header.Set("X-Gitlab-Token", notice.NewSecret())
	if read(t, d).ProvedBy(secret) {
		t.Error("proved by the signature beside a wrong token")
	}
	d = noticetest.Pushes(app, secret)["gitlab both"]
	d.Header.Set("webhook-timestamp", "0")
	if read(t, d).ProvedBy(secret) {
		t.Error("proved by the token beside a wrong signature")
	}
	// While its forge's key is replaced, Standard Webhooks signs with both.
	d = noticetest.Pushes(app, secret)["generic standard"]
	d.Header.Set("webhook-signature", "v1a,x "+d.Header.Get("webhook-signature")+" v1,AAAA")
	if !read(t, d).ProvedBy(secret) {
		t.Error("not proved by the second of several signatures")
	}
}

func TestWhatIsNoPushIsTold(t *testing.T) {
	t.Parallel()
	secret := notice.NewSecret()
	if n := read(t, noticetest.GitHub("ping", app, secret)); n.Push || !n.ProvedBy(secret) {
		t.Errorf("ping is %+v", n)
	}
	d := noticetest.GitLab(app, secret)
	d.Body = []byte(strings.ReplaceAll(strings.ReplaceAll(string(d.Body), `"object_kind": "push"`, `"object_kind": "issue"`), `"event_name": "push"`, `"event_name": "issue"`))
	if n := read(t, d); n.Push {
		t.Errorf("an issue is %+v", n)
	}
	d.Body = []byte(strings.ReplaceAll(string(d.Body), `"event_name": "issue"`, `"event_name": "tag_push"`))
	if n := read(t, d); !n.Push {
		t.Errorf("a system hook's tag is %+v", n)
	}
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	signed := http.Header{"X-Hub-Signature-256": {"sha256=00"}}
	for body, want := range map[string]error{
		"": notice.ErrMalformed, "{": notice.ErrMalformed, "[]": notice.ErrMalformed, "null": notice.ErrMalformed, `{"repository": 7}`: notice.ErrMalformed,
		`{"repository": "ext::sh -c id"}`: notice.ErrMalformed, `{"repository": {"clone_url": "https://u:canary@forge.example/x"}}`: notice.ErrMalformed,
		`{"repository": {"clone_url": {}}}`: notice.ErrMalformed, strings.Repeat("[", 20000): notice.ErrMalformed, "\xff\xfe": notice.ErrMalformed,
	} {
		if n, err := notice.Read(signed, []byte(body)); !errors.Is(err, want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%.40q: %+v, %v", body, n, err)
		}
	}
	if _, err := notice.Read(http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "X-Hub-Signature-256": {"00"}}, []byte("payload=%zz")); !errors.Is(err, notice.ErrMalformed) {
		t.Errorf("a form that is none: %v", err)
	}
	if _, err := notice.Read(http.Header{"X-Github-Event": {"push"}, "X-Hub-Signature": {"sha1=00"}}, []byte("{")); !errors.Is(err, notice.ErrUnsigned) {
		t.Errorf("signed with SHA-1 alone: %v", err)
	}
}

func TestSecretsThatCanBeGuessedOrSentNowhereAreRefused(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		secret := notice.NewSecret()
		if err := notice.CheckSecret(secret); err != nil || seen[secret] {
			t.Fatalf("%q: %v, seen before: %v", secret, err, seen[secret])
		}
		seen[secret] = true
	}
	for _, secret := range []string{"", "short", strings.Repeat("x", 257), "with spaces in the middle", "with-a-newline-at-the-end\n", "café-café-café-café"} {
		if notice.CheckSecret(secret) == nil {
			t.Errorf("%q is taken", secret)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, d := range noticetest.Pushes(app, notice.NewSecret()) {
		f.Add(d.Header.Get("Content-Type"), "sha256=00", string(d.Body))
	}
	f.Fuzz(func(t *testing.T, contentType, signature, body string) {
		n, err := notice.Read(http.Header{"Content-Type": {contentType}, "X-Hub-Signature-256": {signature}}, []byte(body))
		if err != nil {
			return
		}
		if n.ProvedBy(notice.NewSecret()) {
			t.Error("proved by a secret that nobody knew")
		}
		for _, u := range n.Repositories {
			if again, err := giturl.Parse(u.String()); err != nil || again.Key() != u.Key() {
				t.Errorf("names %s, which is read as %s, %v", u, again, err)
			}
		}
	})
}
