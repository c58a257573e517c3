package catalogue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/mesh-control/mesh/catalogue/notice"
)

// HooksPath is where [Service.Hooks] takes notices, of all forges and all repositories.
const HooksPath = "/hooks"

// The bounds of one notice. One that is larger than maxNotice is not read; polling finds what
// it told of. Few of those larger than smallNotice are held at a time.
const (
	maxNotice    = 4 << 20
	smallNotice  = 64 << 10
	largeNotices = 4
	noticeTime   = 10 * time.Second // for all of its body to arrive, and then for the database
)

// What became of a notice: a label of the metric, and catalogue.hooks.outcome.
const (
	noticeAccepted  = "accepted"
	noticeIgnored   = "ignored" // proved, and of something else than a push
	noticeRefused   = "bad-signature"
	noticeUnsigned  = "unsigned"
	noticeUnmatched = "unmatched"
	noticeSealed    = "sealed-away" // this process cannot open the hook's secret
	noticeMalformed = "malformed"
	noticeTooLarge  = "too-large"
	noticeTooSlow   = "too-slow"
	noticeFailed    = "failed" // the database did not answer
)

// verdict is how a notice is answered and counted.
type verdict struct {
	status  int
	outcome string
	subject string // URL of a watched repository, or what the sender called its own
	text    string
}

// Whoever does not hold a repository's secret hears the same of one that is watched, one that
// is not, and one that has no hook.
const notProved = "no repository of this address has a hook with this secret"

// Hooks takes the notices of forges under [HooksPath]. Any catalogue can, the one that leads
// or not: a notice only asks the leader, through the database, to look at its repository.
func (s *Service) Hooks() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+HooksPath, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(noticeTime))
		v := s.notice(w, r)
		s.countNotice(v, notice.ForgeOf(r.Header))
		if v.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "5")
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(v.status)
		fmt.Fprintln(w, v.text)
	})
	return mux
}

func (s *Service) notice(w http.ResponseWriter, r *http.Request) verdict {
	body, v := s.noticeBody(w, r)
	if v != nil {
		return *v
	}
	n, err := notice.Read(r.Header, body)
	switch {
	case errors.Is(err, notice.ErrUnsigned):
		return verdict{http.StatusUnauthorized, noticeUnsigned, "", err.Error()}
	case err != nil:
		return verdict{http.StatusBadRequest, noticeMalformed, "", err.Error()}
	}
	ctx, cancel := context.WithTimeout(r.Context(), noticeTime)
	defer cancel()
	return s.judge(ctx, n)
}

// noticeBody reads all of a notice, or says why it does not.
func (s *Service) noticeBody(w http.ResponseWriter, r *http.Request) ([]byte, *verdict) {
	tooLarge := &verdict{http.StatusRequestEntityTooLarge, noticeTooLarge, "", fmt.Sprintf("a notice has %d bytes at most; polling finds what it tells of", maxNotice)}
	if r.ContentLength > maxNotice {
		return nil, tooLarge
	}
	limited := http.MaxBytesReader(w, r.Body, maxNotice)
	body, err := io.ReadAll(io.LimitReader(limited, smallNotice))
	if err == nil && len(body) == smallNotice {
		ctx, cancel := context.WithTimeout(r.Context(), noticeTime/2)
		defer cancel()
		if !enter(ctx, s.hooks.large) {
			return nil, &verdict{http.StatusServiceUnavailable, noticeFailed, "", "too many large notices at a time; send it again"}
		}
		defer leave(s.hooks.large)
		var rest []byte
		rest, err = io.ReadAll(limited)
		body = append(body, rest...)
	}
	var over *http.MaxBytesError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &over):
		return nil, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &verdict{http.StatusRequestTimeout, noticeTooSlow, "", fmt.Sprintf("the notice took longer than %s to arrive", noticeTime)}
	}
	return nil, &verdict{http.StatusBadRequest, noticeMalformed, "", "the notice did not arrive whole"}
}

// judge finds the hooks that a notice may be meant for, and acts on those whose secret its
// sender holds.
func (s *Service) judge(ctx context.Context, n *notice.Notice) verdict {
	matched, err := s.hooks.find(ctx, s, n.Repositories)
	if err != nil {
		s.log.Warn("read the hooks", "error", err)
		return verdict{http.StatusServiceUnavailable, noticeFailed, "", "the catalogue's database does not answer; send it again"}
	}
	refused := verdict{http.StatusUnauthorized, noticeUnmatched, subjectOf(n), notProved}
	if len(matched) == 0 {
		n.ProvedBy(s.hooks.nobodys) // takes the time that a matched one takes
	}
	var proved []hook
	for _, h := range matched {
		switch {
		case n.ProvedBy(h.secret):
			proved = append(proved, h)
		case h.secret == "":
			refused.outcome, refused.subject = noticeSealed, h.url
		default:
			refused.outcome, refused.subject = noticeRefused, h.url
		}
	}
	switch {
	case len(proved) == 0:
		return refused
	case !n.Push:
		return verdict{http.StatusOK, noticeIgnored, proved[0].url, "the secret is right; only pushes are acted upon"}
	}
	for _, h := range proved {
		if err := s.lookSoon(ctx, h); err != nil {
			s.log.Warn("act upon a notice", "repository", h.url, "error", err)
			return verdict{http.StatusServiceUnavailable, noticeFailed, h.url, "the catalogue's database does not answer; send it again"}
		}
	}
	return verdict{http.StatusAccepted, noticeAccepted, proved[0].url, "the repository is looked at"}
}

// subjectOf is what a sender calls its repository, as it may be stored and shown.
func subjectOf(n *notice.Notice) string {
	const longest = 200
	name := n.Repositories[0].String()
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "") + "…"
	}
	return name
}
