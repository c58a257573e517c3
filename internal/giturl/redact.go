package giturl

import (
	"regexp"
	"strings"
)

var userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*)://([^/\s"']*)@`)

// Redact cuts user names and passwords out of every URL in a text, since a token may stand
// as either. The user of an ssh URL is none and stays.
func Redact(text string) string {
	return userinfo.ReplaceAllStringFunc(text, func(match string) string {
		parts := userinfo.FindStringSubmatch(match)
		if parts[1] == SSH {
			user, _, _ := strings.Cut(parts[2], ":")
			return parts[1] + "://" + user + "@"
		}
		return parts[1] + "://"
	})
}

// shown is an address that was refused, as far as it may be repeated: whatever stands before
// an "@" may be a secret when the whole makes no sense.
func shown(address string) string {
	address = strings.Join(strings.Fields(strings.ToValidUTF8(address, " ")), " ")
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		scheme, rest = "", address
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = "…" + rest[at:]
	}
	if len(rest) > 200 {
		rest = rest[:200] + "…"
	}
	if ok {
		rest = scheme + "://" + rest
	}
	if rest == "" {
		return `""`
	}
	return rest
}
