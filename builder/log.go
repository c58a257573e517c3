package builder

import (
	"strings"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/schema"
)

// maxLog is how much of a build's log its result carries, maxLine how much of one line.
const (
	maxLog  = 64 << 10
	maxLine = 4 << 10
)

// journal is what a build says: live to whoever listens, and its tail into the result.
// Secrets are cut out before anything leaves it.
type journal struct {
	mu       sync.Mutex
	builder  string
	id       string
	secrets  []string
	listener func(schema.Progress)
	tail     []byte
	cut      bool
}

// hide keeps a value out of everything said from now on.
func (j *journal) hide(secret string) {
	if len(secret) < 4 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.secrets = append(j.secrets, secret)
}

func (j *journal) redact(text string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.secrets {
		text = strings.ReplaceAll(text, s, "[redacted]")
	}
	return giturl.Redact(text)
}

func (j *journal) say(phase schema.Phase, artifact, line string) {
	// Secrets go first: a cut through one would leave what does not look like it.
	if line = j.redact(line); len(line) > maxLine {
		line = line[:maxLine] + "…"
	}
	line = strings.ToValidUTF8(line, "\uFFFD")
	j.mu.Lock()
	if line != "" {
		j.tail = append(append(j.tail, line...), '\n')
		if over := len(j.tail) - maxLog; over > 0 {
			j.tail, j.cut = append(j.tail[:0], j.tail[over:]...), true
		}
	}
	j.mu.Unlock()
	if j.listener != nil {
		j.listener(schema.Progress{ID: j.id, Phase: phase, Artifact: artifact, Line: line, Builder: j.builder, At: time.Now().UTC()})
	}
}

// log is the tail, from its first whole line.
func (j *journal) log() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := string(j.tail)
	if _, rest, ok := strings.Cut(text, "\n"); j.cut && ok {
		return rest
	}
	return text
}
