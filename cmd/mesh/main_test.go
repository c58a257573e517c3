package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
)

func TestMain(m *testing.M) {
	testscript.Main(tidy{testenv.Wrap(m)}, map[string]func(){"mesh": main})
}

// tidy looks for goroutines left running, as testenv.Run does where testscript is not in charge.
type tidy struct{ inner testscript.TestingM }

func (t tidy) Run() int {
	code := t.inner.Run()
	if code == 0 {
		if err := goleak.Find(registrytest.Leaks()); err != nil {
			fmt.Fprintln(os.Stderr, "goleak:", err)
			code = 1
		}
	}
	return code
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"code": testenv.ScriptCode},
	})
}
