package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/reconcile/api"
)

func TestExitCodesAreThoseOfTheHelp(t *testing.T) {
	for code, meaning := range map[int]string{
		exitDone: "done", exitFailed: "failed", exitUsage: "wrong use", exitBehind: "behind or would change", exitPartly: "partly failed",
		exitBlocked: "blocked", exitTimeout: "timed out and still going", exitUnreachable: "unreachable", exitInterrupted: "interrupted",
	} {
		if line := fmt.Sprintf(" %d %s", code, meaning); !strings.Contains(strings.ReplaceAll(exitHelp, "\n", " "), line) {
			t.Errorf("the help does not say%s", line)
		}
	}
}

// played is a controller that answers as it is told to: what a real one does too seldom, or
// too late, for a test.
func played(t *testing.T, answers map[string]func(call int) (status int, document any)) *operator {
	t.Helper()
	calls := map[string]int{} // one client asks one question at a time
	return operatorOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			t.Errorf("%s was asked", r.URL.Path)
			answer = func(int) (int, any) { return http.StatusNotFound, nil }
		}
		calls[r.URL.Path]++
		status, document := answer(calls[r.URL.Path])
		if status == 0 {
			panic(http.ErrAbortHandler) // the connection ends without an answer
		}
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(document); err != nil {
			t.Error(err)
		}
	}))
}

func TestRefusalsHaveTheirExitCode(t *testing.T) {
	for code, want := range map[string]int{
		api.CodeInvalidInput: exitUsage, api.CodeBlocked: exitBlocked, api.CodeUnavailable: exitUnreachable,
		api.CodeNotFound: exitFailed, api.CodeConflict: exitFailed, api.CodeInternal: exitFailed,
	} {
		m := played(t, map[string]func(int) (int, any){
			api.AssignmentAdd.Path(): func(int) (int, any) {
				return http.StatusConflict, api.Error{Code: code, Message: "it cannot be", Remedy: "try another"}
			},
		})
		r := m.run("assign", "web", "--node", "n1").exits(want)
		if r.stdout != "" || r.stderr != "mesh: assign: it cannot be\nhint: try another\n" {
			t.Errorf("%s:\n%s\n%s", code, r.stdout, r.stderr)
		}
	}
}

// A push may replace the controller itself: it is away for a moment, and that is no failure.
func TestPushWaitsForAControllerThatIsAwayForAMoment(t *testing.T) {
	pushed := api.NodePush{Node: "n1", Generation: 3, State: "pushed"}
	waiting, applied := pushed, pushed
	waiting.State, waiting.Message = "waiting", "sent, and not seen by its host yet"
	applied.State = "applied"
	m := played(t, map[string]func(int) (int, any){
		api.DeliveryPlan.Path(): func(int) (int, any) {
			return http.StatusOK, api.PlanOut{Nodes: []api.NodePlan{{Node: "n1", Hash: digest("plan")}}}
		},
		api.DeliveryPush.Path(): func(int) (int, any) { return http.StatusOK, api.PushOut{Nodes: []api.NodePush{pushed}} },
		api.DeliveryWatch.Path(): func(call int) (int, any) {
			switch call {
			case 1, 2:
				return http.StatusOK, api.DeliveryWatchOut{Nodes: []api.NodePush{waiting}}
			case 3:
				return 0, nil
			case 4:
				return http.StatusServiceUnavailable, api.Error{Code: api.CodeUnavailable, Message: "starting"}
			default:
				return http.StatusOK, api.DeliveryWatchOut{Nodes: []api.NodePush{applied}, Done: true}
			}
		},
	})
	r := m.run("push", "n1", "-y").exits(exitDone).says("n1    3           applied")
	if want := "  n1: generation 3 pushed\n  n1: sent, and not seen by its host yet\n"; r.stderr != want {
		t.Errorf("stderr:\n%s\nwant:\n%s", r.stderr, want)
	}
}

func TestPushWithSomethingHeldBackExits4(t *testing.T) {
	held := []api.Blocked{{Module: "web", Message: "its secret key is not given", Remedy: "mesh secret give web key --node n1"}}
	m := played(t, map[string]func(int) (int, any){
		api.DeliveryPlan.Path(): func(int) (int, any) {
			return http.StatusOK, api.PlanOut{Nodes: []api.NodePlan{{Node: "n1", Hash: digest("plan"), Blocked: held}, {Node: "n2", Hash: digest("plan")}}}
		},
		api.DeliveryPush.Path(): func(int) (int, any) {
			return http.StatusOK, api.PushOut{Nodes: []api.NodePush{
				{Node: "n1", Generation: 3, State: "pushed", Blocked: held}, {Node: "n2", State: "conflict", Message: "it changed"},
			}}
		},
		api.DeliveryWatch.Path(): func(int) (int, any) {
			return http.StatusOK, api.DeliveryWatchOut{Nodes: []api.NodePush{{Node: "n1", Generation: 3, State: "applied"}}, Done: true}
		},
	})
	m.run("push", "n1", "n2", "-y").exits(exitPartly).
		says("! web is held back: its secret key is not given", "n1    3           applied", "n2    0           conflict  it changed").
		warns("hint: mesh secret give web key --node n1")
}
