package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/mesh-control/mesh/schema"
)

// state is what the host remembers of its work. It is a cache: without it the declaration,
// labels, records and owned paths say the same, and only the report's sequence restarts,
// from the clock, so that it still grows.
type state struct {
	Epoch       int64           `json:"epoch"`
	Seen        int64           `json:"seen"`
	Applied     int64           `json:"applied"`
	AppliedHash string          `json:"appliedHash,omitempty"`
	Sequence    int64           `json:"sequence"`
	Outcome     string          `json:"outcome,omitempty"`
	Cause       string          `json:"cause,omitempty"`
	Held        map[string]held `json:"held,omitempty"`
	// Refused is the generation of the last declaration that was refused, 0 once another was
	// accepted.
	Refused      int64  `json:"refused,omitempty"`
	RefusedCause string `json:"refusedCause,omitempty"`
	// Unproven are containers and services that were started and have not been seen to work
	// since: id to spec.
	Unproven map[string]string `json:"unproven,omitempty"`
}

// held is a definition that was tried, failed and was put back; it is not tried again before
// the next generation.
type held struct {
	Spec  string `json:"spec"`
	Cause string `json:"cause"`
}

// owned is one path this host made.
type owned struct {
	Type    string `json:"type"`
	Path    string `json:"path,omitempty"` // on this machine
	Spec    string `json:"spec"`
	Trigger string `json:"trigger,omitempty"`
}

const (
	stateFile       = "state.json"
	ownedFile       = "owned.json"
	declarationFile = "declaration.json"
	previousFile    = "declaration.previous.json"
)

// readJSON gives fs.ErrNotExist for a file that was never there; anything else that stops it
// from being read is another error.
func readJSON(name string, into any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

func writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return writeFile(name, append(data, '\n'), 0o600, keepOwner)
}

// loadState reads the cache; whatever is wrong with it, an empty one that still counts
// upwards comes back, and the reason.
func loadState(layout Layout) (state, error) {
	var s state
	err := readJSON(layout.state(stateFile), &s)
	if err != nil {
		s = state{Sequence: time.Now().UnixMicro()}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if s.Unproven == nil {
		s.Unproven = map[string]string{}
	}
	if s.Held == nil {
		s.Held = map[string]held{}
	}
	return s, err
}

// loadOwned reads what this host made. complete is false when that is no longer known.
func loadOwned(layout Layout) (all map[string]owned, complete bool) {
	all = map[string]owned{}
	if err := readJSON(layout.state(ownedFile), &all); err != nil {
		_, started := os.Stat(layout.state(declarationFile))
		return map[string]owned{}, errors.Is(err, fs.ErrNotExist) && errors.Is(started, fs.ErrNotExist)
	}
	return all, true
}

// loadDeclaration gives the last accepted declaration, or the one before when the file is
// damaged; nil when there never was one.
func loadDeclaration(layout Layout) (*schema.Declaration, error) {
	var first error
	for _, name := range []string{declarationFile, previousFile} {
		var d schema.Declaration
		err := readJSON(layout.state(name), &d)
		if err == nil {
			return &d, nil
		}
		if first == nil && !errors.Is(err, fs.ErrNotExist) {
			first = err
		}
	}
	return nil, first
}

// saveDeclaration makes d the target; the one before is kept beside it.
func saveDeclaration(layout Layout, d schema.Declaration) error {
	current := layout.state(declarationFile)
	if data, err := os.ReadFile(current); err == nil && json.Valid(data) {
		if err := writeFile(layout.state(previousFile), data, 0o600, keepOwner); err != nil {
			return err
		}
	}
	return writeJSON(current, d)
}
