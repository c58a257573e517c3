package modules_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func TestMain(m *testing.M) { testenv.Run(m, registrytest.Leaks()) }

// provisioner is the module's own program, run against a real server. One at a time: each
// takes the roles of every other for withdrawn.
type provisioner struct {
	t      *testing.T
	server *url.URL
	grants string
	log    *testenv.Buffer
}

// startProvisioner runs it against address, or against the server itself.
func startProvisioner(t *testing.T, address string) *provisioner {
	t.Helper()
	server, err := url.Parse(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	p := &provisioner{t: t, server: server, grants: t.TempDir(), log: &testenv.Buffer{}}
	if address == "" {
		address = server.Host
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	secrets := t.TempDir()
	password, _ := server.User.Password()
	if err := os.WriteFile(filepath.Join(secrets, "superuser"), []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	program := exec.Command(testenv.Program(t, "postgres/provisioner"),
		"--host", host, "--port", port, "--user", server.User.Username(), "--interval", "100ms",
		"--password-file", filepath.Join(secrets, "superuser"), "--grants", p.grants)
	program.Stderr = p.log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		if err := program.Wait(); err != nil {
			t.Errorf("provisioner ended: %v", err)
		}
		if t.Failed() {
			t.Logf("provisioner said:\n%s", p.log)
		}
	})
	return p
}

func grantOf(user, password string) schema.Grant {
	return schema.Grant{
		Schema: schema.Version, Consumer: user, Node: "n1", Provision: "postgresql",
		User: user, Password: password, Database: user,
	}
}

// land puts a grant into the directory as a host does: beside, then renamed.
func (p *provisioner) land(g schema.Grant) {
	p.t.Helper()
	text, err := json.Marshal(g)
	if err != nil {
		p.t.Fatal(err)
	}
	p.landText(g.Consumer+"."+g.Node+".json", text)
}

func (p *provisioner) landText(name string, text []byte) {
	p.t.Helper()
	beside := filepath.Join(p.grants, "."+name)
	if err := os.WriteFile(beside, text, 0o400); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(beside, filepath.Join(p.grants, name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *provisioner) withdraw(consumer string) {
	p.t.Helper()
	if err := os.Remove(filepath.Join(p.grants, consumer+".n1.json")); err != nil {
		p.t.Fatal(err)
	}
}

func (p *provisioner) connect(user, password, database string) (*pgx.Conn, error) {
	target := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: p.server.Host, Path: "/" + database}
	return pgx.Connect(p.t.Context(), target.String())
}

// can waits until a consumer's credential is good for a statement.
func (p *provisioner) can(user, password, sql string) {
	p.t.Helper()
	p.eventually(user+" can "+sql, func() error {
		conn, err := p.connect(user, password, user)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(p.t.Context(), sql)
		return err
	})
}

// cannot waits until a credential is good for nothing.
func (p *provisioner) cannot(user, password string) {
	p.t.Helper()
	p.eventually(user+" can no longer log in", func() error {
		conn, err := p.connect(user, password, user)
		if err != nil {
			return nil //nolint:nilerr // that is what is wanted
		}
		_ = conn.Close(context.Background())
		return fmt.Errorf("%s logged in", user)
	})
}

func (p *provisioner) eventually(what string, f func() error) {
	p.t.Helper()
	eventually(p.t, what, f)
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestS1_130_TheProvisionerSeesEveryReplacementOfAGrant(t *testing.T) {
	p := startProvisioner(t, "")
	p.land(grantOf("shop", "first"))
	p.can("shop", "first", "CREATE TABLE kept (n int)")
	for i, password := range []string{"second", "it's third", "fourth"} {
		before := []string{"first", "second", "it's third"}[i]
		p.land(grantOf("shop", password))
		p.can("shop", password, "INSERT INTO kept VALUES (1)")
		p.cannot("shop", before)
	}
}

func TestAWithdrawnGrantLocksItsRoleAndKeepsItsData(t *testing.T) {
	p := startProvisioner(t, "")
	p.land(grantOf("leaver", "one"))
	p.land(grantOf("stayer", "two"))
	p.can("leaver", "one", "CREATE TABLE kept AS SELECT 1 AS n")
	p.can("stayer", "two", "SELECT 1")
	open, err := p.connect("leaver", "one", "leaver")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(context.Background())
	p.withdraw("leaver")
	p.cannot("leaver", "one")
	p.eventually("its connection is ended", func() error {
		if open.Ping(t.Context()) == nil {
			return fmt.Errorf("it answers")
		}
		return nil
	})
	p.can("stayer", "two", "SELECT 1")
	p.land(grantOf("leaver", "three"))
	p.can("leaver", "three", "SELECT n FROM kept")
}

func TestNobodyConnectsToTheDatabaseOfAnother(t *testing.T) {
	p := startProvisioner(t, "")
	p.land(grantOf("one", "a"))
	p.land(grantOf("two", "b"))
	p.can("one", "a", "SELECT 1")
	p.can("two", "b", "SELECT 1")
	if conn, err := p.connect("one", "a", "two"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
		t.Errorf("one connects to two's database: %v", err)
	}
}

func TestAnUnreadableGrantIsToldAndNotWithdrawn(t *testing.T) {
	p := startProvisioner(t, "")
	p.land(grantOf("frail", "hush"))
	p.can("frail", "hush", "SELECT 1")
	p.landText("frail.n1.json", []byte(`{"schema": 1, "password": "hush`))
	p.land(grantOf("after", "x")) // when this is granted, a pass has seen the other
	p.can("after", "x", "SELECT 1")
	p.eventually("it is told", func() error {
		if !strings.Contains(p.log.String(), "frail.n1.json") {
			return fmt.Errorf("it said nothing")
		}
		return nil
	})
	p.can("frail", "hush", "SELECT 1")
	if strings.Contains(p.log.String(), "hush") {
		t.Error("the log has the password")
	}
}

func TestRolesOfOthersAreNotTouched(t *testing.T) {
	p := startProvisioner(t, "")
	conn, err := pgx.Connect(t.Context(), p.server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE owned_elsewhere LOGIN PASSWORD 'theirs'"); err != nil {
		t.Fatal(err)
	}
	p.land(grantOf("owned_elsewhere", "mine"))
	p.eventually("it is refused", func() error {
		if !strings.Contains(p.log.String(), "was there before") {
			return fmt.Errorf("it said nothing")
		}
		return nil
	})
	theirs, err := p.connect("owned_elsewhere", "theirs", strings.TrimPrefix(p.server.Path, "/"))
	if err != nil {
		t.Fatalf("the role was changed: %v", err)
	}
	_ = theirs.Close(context.Background())
}

func TestTheProvisionerWaitsForItsServer(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	_ = closed.Close()
	p := startProvisioner(t, address)
	p.land(grantOf("patient", "x"))
	p.eventually("it says that there is no server", func() error {
		if !strings.Contains(p.log.String(), "connect to the server") {
			return fmt.Errorf("it said nothing")
		}
		return nil
	})
	opened, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("the port was taken meanwhile: %v", err)
	}
	t.Cleanup(forward(opened, p.server.Host))
	p.can("patient", "x", "SELECT 1")
}

// forward passes connections on; what it gives ends it.
func forward(listener net.Listener, to string) func() {
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			target, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			mu.Lock()
			open = append(open, from, target)
			mu.Unlock()
			for _, pair := range [][2]net.Conn{{from, target}, {target, from}} {
				running.Go(func() {
					buffer := make([]byte, 32<<10)
					for {
						n, err := pair[0].Read(buffer)
						if n > 0 {
							_, _ = pair[1].Write(buffer[:n])
						}
						if err != nil {
							_ = pair[1].Close()
							return
						}
					}
				})
			}
		}
	})
	return func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		running.Wait()
	}
}
