package genesis

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// entry is one line of the journal: a phase that ended.
type entry struct {
	Phase  string    `json:"phase"`
	At     time.Time `json:"at"`
	Millis int64     `json:"millis"`
	Error  string    `json:"error,omitempty"`
}

// phase is one named step; it checks before it does.
type phase struct {
	name string
	do   func(ctx context.Context) (note string, err error)
}

// runPhases runs them in order, a line and a journal entry each, and stops at the first
// that fails.
func (in *Installer) runPhases(ctx context.Context, phases []phase) error {
	for i, p := range phases {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before %s: %w", p.name, err)
		}
		started := time.Now()
		note, err := p.do(ctx)
		took := time.Since(started)
		e := entry{Phase: p.name, At: started.UTC(), Millis: took.Milliseconds()}
		if err != nil {
			e.Error = err.Error()
		}
		if journalErr := in.record(e); journalErr != nil && err == nil {
			err = journalErr
		}
		if err != nil {
			fmt.Fprintf(in.Out, "%2d/%d %-11s failed after %s\n", i+1, len(phases), p.name, took.Round(10*time.Millisecond))
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(in.Out, "%2d/%d %-11s %7.1fs  %s\n", i+1, len(phases), p.name, took.Seconds(), note)
	}
	return nil
}

func (in *Installer) record(e entry) error {
	path := in.layout().journal()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	defer file.Close()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return file.Sync()
}
