package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// heldName is the name under which this program, whichever it is, waits to become another.
const heldName = "mesh-held"

// What the waiting one is given, after standard input, output and error.
const (
	gateFile = 3 // it reads here as what it is to run; the end, without that, says that nobody knows it
	wordFile = 4 // it says here why it could not become the other
)

// standing is as what a program runs.
type standing struct {
	Credential *syscall.Credential // nil is the host's own
	Directory  string
}

func init() {
	if len(os.Args) > 1 && os.Args[0] == heldName {
		becomeProgram(os.Args[1], os.Args[1:])
	}
}

// becomeProgram is the life of a process between its record and its program: whoever made it
// may die before it is recorded, and then it must end without having done anything.
func becomeProgram(program string, args []string) {
	gate, word := os.NewFile(gateFile, "gate"), os.NewFile(wordFile, "word")
	var as standing
	if err := json.NewDecoder(gate).Decode(&as); err != nil {
		os.Exit(1)
	}
	syscall.CloseOnExec(gateFile)
	syscall.CloseOnExec(wordFile)
	err := as.take()
	if err == nil {
		err = &os.PathError{Op: "exec", Path: program, Err: syscall.Exec(program, args, os.Environ())} //nolint:gosec // the host says which
	}
	_, _ = word.WriteString(err.Error())
	os.Exit(1)
}

// take happens here and not when the process is made, because the account need not be able to
// execute the host's program.
func (s standing) take() error {
	if c := s.Credential; c != nil {
		groups := make([]int, 0, len(c.Groups))
		for _, group := range c.Groups {
			groups = append(groups, int(group))
		}
		if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(int(c.Gid)), syscall.Setuid(int(c.Uid))); err != nil {
			return fmt.Errorf("become account %d:%d: %w", c.Uid, c.Gid, err)
		}
	}
	if s.Directory == "" {
		return nil
	}
	return os.Chdir(s.Directory)
}

// holder is the host's end of a process that is held back.
type holder struct {
	as         standing
	gate, word *os.File
}

// start starts a process that is held back; command names its program and says all else but
// its standing.
func start(command *exec.Cmd, as standing) (*holder, error) {
	wait, gate, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	word, say, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	defer say.Close()
	command.Args = append([]string{heldName}, command.Args...)
	command.Path, command.ExtraFiles = "/proc/self/exe", []*os.File{wait, say}
	h := &holder{as: as, gate: gate, word: word}
	if err := command.Start(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *holder) close() {
	_ = h.gate.Close()
	_ = h.word.Close()
}

// release lets the process run its program, and says why it could not.
func (h *holder) release() error {
	defer h.close()
	if err := json.NewEncoder(h.gate).Encode(h.as); err != nil {
		return fmt.Errorf("the process ended before it ran its program: %w", err)
	}
	word, err := io.ReadAll(h.word)
	if err == nil && len(word) > 0 {
		err = errors.New(string(word))
	}
	return err
}
