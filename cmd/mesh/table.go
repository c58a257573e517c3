package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mesh-control/mesh/reconcile/api"
)

// table aligns rows under a heading; an empty one prints what is missing instead.
func table(w io.Writer, none string, heading []string, rows [][]string) {
	if len(rows) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(heading, "\t"))
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
}

// short is a digest or commit as people read it.
func short(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	if len(digest) > 12 {
		digest = digest[:12]
	}
	return orDash(digest)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func ago(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	since := time.Since(at).Round(time.Second)
	switch {
	case since < 0:
		return "now"
	case since < time.Minute:
		return fmt.Sprintf("%ds ago", int(since.Seconds()))
	case since < time.Hour:
		return fmt.Sprintf("%dm ago", int(since.Minutes()))
	case since < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(since.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(since.Hours()/24))
	}
}

func took(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return "-"
	}
	return to.Sub(from).Round(100 * time.Millisecond).String()
}

func reasons(all []api.Reason) string {
	texts := make([]string, len(all))
	for i, reason := range all {
		texts[i] = reason.Message
	}
	return orDash(strings.Join(texts, "; "))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// place is a module's repository and path as people write them.
func place(repository, path string) string {
	if path == "" {
		return repository
	}
	return repository + " " + path
}
