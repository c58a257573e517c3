package testenv

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer keeps what is written to it, by several at once and while it is read. Its zero value
// is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines are the lines with something in them.
func (b *Buffer) Lines() []string {
	return strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' })
}
