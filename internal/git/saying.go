package git

import "sync"

// saying keeps the beginning of what a server says.
type saying struct {
	mu   sync.Mutex
	kept []byte
}

func (s *saying) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, p[:min(len(p), messageBytes-len(s.kept))]...)
	return len(p), nil
}

func (s *saying) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return printable(string(s.kept))
}
