package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

// The exit codes, the same for every command.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitBehind      = 3
	exitPartly      = 4
	exitBlocked     = 5
	exitTimeout     = 6
	exitUnreachable = 7
	exitInterrupted = 130
)

const exitHelp = `Exit codes: 0 done, 1 failed, 2 wrong use, 3 behind or would change (--exit-code),
4 partly failed, 5 blocked, 6 timed out and still going, 7 unreachable, 130 interrupted.`

// outcome is an error that carries its exit code. With no message it was said already.
type outcome struct {
	code    int
	message string
	hints   []string
}

func (o *outcome) Error() string { return o.message }

func usage(format string, args ...any) error {
	return &outcome{code: exitUsage, message: fmt.Sprintf(format, args...)}
}

func said(code int) error {
	if code == exitDone {
		return nil
	}
	return &outcome{code: code}
}

// exit prints an error the one way there is, and gives the code.
func (a *app) exit(ctx context.Context, err error) int {
	if err == nil {
		return exitDone
	}
	var result *outcome
	if errors.As(err, &result) {
		if result.message != "" {
			a.complain(result.message, result.hints...)
		}
		return result.code
	}
	if ctx.Err() != nil {
		a.complain("interrupted")
		return exitInterrupted
	}
	if errors.Is(err, context.DeadlineExceeded) {
		a.complain("timed out; what was started goes on", "mesh status shows how far it is")
		return exitTimeout
	}
	if errors.Is(err, apiclient.ErrUnreachable) {
		a.complain(err.Error(), "is the controller running? mesh-host status on its node says so")
		return exitUnreachable
	}
	var problem *api.Error
	if errors.As(err, &problem) {
		a.complain(problem.Message, problem.Remedy)
		return problemCode(problem.Code)
	}
	a.complain(err.Error())
	return exitFailed
}

func problemCode(code string) int {
	switch code {
	case api.CodeInvalidInput:
		return exitUsage
	case api.CodeBlocked:
		return exitBlocked
	case api.CodeUnavailable:
		return exitUnreachable
	default:
		return exitFailed
	}
}

// complain writes the error and at most two hints.
func (a *app) complain(message string, hints ...string) {
	name := "mesh: "
	if a.running != "" {
		name = "mesh: " + a.running + ": "
	}
	fmt.Fprintln(a.stderr, name+strings.TrimSpace(message))
	shown := 0
	for _, hint := range hints {
		if hint != "" && shown < 2 {
			fmt.Fprintln(a.stderr, "hint: "+hint)
			shown++
		}
	}
}
