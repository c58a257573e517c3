// Package testenv gives tests real servers: PostgreSQL, RabbitMQ, git over HTTP, a container
// engine. Each is started at most once in a test binary, when a test first asks for it, in a
// temporary directory and on ports of its own, and is ended after the tests.
//
// A test binary that wants servers says so in TestMain:
//
//	func TestMain(m *testing.M) { testenv.Run(m) }
//
// Under -short, which starts no servers, a test that asks for one is skipped. Run also looks
// for goroutines left running. A binary that dies on the way, by a signal or a timeout, leaves
// nothing either: a watchdog process holds the end of a pipe, and when the binary is gone it
// ends the servers by process id and removes their directory.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mesh-control/mesh/internal/foundation"
)

// startTimeout bounds the start of one server. Two cores shared by many packages are slow.
const startTimeout = 3 * time.Minute

// TestingM is what Run and Wrap need of *testing.M.
type TestingM interface{ Run() int }

// Run runs the tests, ends the servers they started, looks for leaked goroutines, and exits.
func Run(m TestingM, options ...goleak.Option) {
	goleak.VerifyTestMain(Wrap(m), options...)
}

// Wrap gives an m that ends the servers after its tests, for a TestMain that hands m to
// something else, such as testscript.Main.
func Wrap(m TestingM) TestingM { return wrapped{m} }

type wrapped struct{ inner TestingM }

func (w wrapped) Run() int {
	code := w.inner.Run()
	if err := servers.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

// servers are those of this test binary. They are shared by every test in it, hence a
// variable of the package.
var servers = &pool{}

// pool owns the processes started, newest last.
type pool struct {
	postgres lazy[foundation.Postgres]
	broker   lazy[BrokerInfo]
	engine   lazy[string]
	programs sync.Map // directory to the function that compiles it once

	mu        sync.Mutex
	processes []*process
	directory string
}

// lazy is a server that is started by the first who asks. A failed start fails everybody:
// the same message is better than one slow attempt for each test.
type lazy[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (l *lazy[T]) get(t testing.TB, start func(context.Context) (T, error)) T {
	t.Helper()
	skipShort(t)
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		l.value, l.err = start(ctx)
	})
	if l.err != nil {
		t.Fatalf("testenv: %v", l.err)
	}
	return l.value
}

// skipShort leaves out what takes a server: -short is the subset for the loop of editing.
func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no servers; make test does")
	}
}

// dir is a fresh directory under the pool's own.
func (p *pool) dir(name string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.directory == "" {
		directory, err := os.MkdirTemp("", "mesh-test-")
		if err != nil {
			return "", err
		}
		p.directory = directory
		// Servers of other accounts pass through it to their own, private directories.
		if err := os.Chmod(directory, 0o711); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(p.directory, name+"-")
}

// stop ends every server, newest first, and removes their files.
func (p *pool) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	for i := len(p.processes) - 1; i >= 0; i-- {
		p.processes[i].kill()
	}
	p.processes = nil
	if p.directory != "" {
		err = os.RemoveAll(p.directory)
		p.directory = ""
	}
	return err
}

// process is one running server with its watchdog.
type process struct {
	cmd      *exec.Cmd
	done     chan struct{} // closed when it has ended
	err      error         // of Wait; read after done
	output   *tailBuffer
	watchdog *exec.Cmd
	release  *os.File // closing it wakes the watchdog
	quit     syscall.Signal
}

// start runs command under a watchdog. quit is the signal that ends it soonest without
// leaving anything behind.
func (p *pool) start(command foundation.Command, quit syscall.Signal) (*process, error) {
	cmd, err := command.Cmd(context.Background())
	if err != nil {
		return nil, err
	}
	started := &process{cmd: cmd, done: make(chan struct{}), output: &tailBuffer{}, quit: quit}
	cmd.Stdout, cmd.Stderr = started.output, started.output
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Exec, err)
	}
	go func() {
		started.err = cmd.Wait()
		close(started.done)
	}()
	p.mu.Lock()
	directory := p.directory
	p.processes = append(p.processes, started)
	p.mu.Unlock()
	if err := started.watch(directory); err != nil {
		started.kill()
		return nil, err
	}
	return started, nil
}

// watchScript waits for the end of its input, which comes when the test binary is gone, and
// ends the process group then: by the signal given, and after ten seconds without asking. The
// test binary kills the watchdog before it closes the pipe.
const watchScript = `cat >/dev/null
kill "-$2" "-$1" 2>/dev/null
n=0
while kill -0 "-$1" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
kill -KILL "-$1" 2>/dev/null
rm -rf -- "$3"`

func (s *process) watch(directory string) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	watchdog := exec.Command("/bin/sh", "-c", watchScript, "watchdog",
		strconv.Itoa(s.cmd.Process.Pid), strconv.Itoa(int(s.quit)), directory)
	watchdog.Stdin = read
	watchdog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watchdog.Start(); err != nil {
		write.Close()
		return fmt.Errorf("start watchdog: %w", err)
	}
	s.watchdog, s.release = watchdog, write
	return nil
}

// kill ends the server and its process group, and waits.
func (s *process) kill() {
	if s.watchdog != nil {
		_ = syscall.Kill(-s.watchdog.Process.Pid, syscall.SIGKILL)
		_ = s.watchdog.Wait()
		_ = s.release.Close()
		s.watchdog = nil
	}
	group := -s.cmd.Process.Pid
	select {
	case <-s.done: // its group may be gone, and its id another's
		return
	default:
	}
	_ = syscall.Kill(group, s.quit)
	select {
	case <-s.done:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-s.done
	}
}

// until waits for ready, and gives up when the server ends first.
func (s *process) until(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.done:
			cancel(errors.New("the server ended"))
		case <-stop:
		}
	}()
	if err := ready(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, s.output)
	}
	return nil
}

// ports finds n free ports of the loopback address, all different.
func ports(n int) ([]int, error) {
	free := make([]int, n)
	for i := range free {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close()
		free[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return free, nil
}

// tailBuffer keeps the end of what a server says.
type tailBuffer struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 16 << 10

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if len(b.data) > tailSize {
		b.data = append([]byte(nil), b.data[len(b.data)-tailSize:]...)
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
