package main

import "testing"

func TestSuspendAndResume(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.run("repo", "suspend", repository).exits(exitDone).says("is suspended")
	m.run("repo", "ls").exits(exitDone).says(repository, "suspended")
	m.run("status").exits(exitDone).says("web", "suspended")
	m.run("behind").exits(exitDone).says("its repository is suspended").warns(repository + " is suspended, last read")
	m.run("doctor").says("repository.suspended", "mesh repo resume "+repository)
	m.run("repo", "resume", repository).exits(exitDone).says("is looked at again")
	m.run("module", "suspend", "web").exits(exitDone)
	m.run("behind").exits(exitDone).says("suspended by anna")
	m.run("module", "resume", "web").exits(exitDone)
	m.run("module", "resume", "web").exits(exitFailed).warns("is not suspended")
}

func TestNothingIsBehindIsNotSaidWhileNobodyLooks(t *testing.T) {
	m := newMesh(t)
	m.run("behind", "--exit-code").exits(exitDone).says("nothing is behind")
	if _, err := m.Pool.Exec(t.Context(), `UPDATE catalogue.instances SET poll = '1 minute', led_at = now() - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	m.run("behind").exits(exitDone).says("nothing is known to be behind").warns("catalogue silent: ", "has said nothing for 1h")
	m.run("behind", "--exit-code").exits(exitBlocked)
	m.run("status").exits(exitDone).warns("catalogue silent: ")
	m.run("doctor").exits(exitFailed).says("catalogue.silent")
}
