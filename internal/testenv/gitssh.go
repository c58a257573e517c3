package testenv

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/mesh-control/mesh/schema"
)

// SSH is a server of git repositories over ssh, with two host keys of different kinds. The
// git program answers; who may log in is decided by one key.
type SSH struct {
	Root     string // repositories lie below it
	Address  string // host:port
	HostKeys []string
	key      string // PEM of who may log in
	listener net.Listener
	config   *ssh.ServerConfig
	running  sync.WaitGroup
}

// GitSSH serves the repositories below root over ssh until the test ends.
func GitSSH(t testing.TB, root string) *SSH {
	t.Helper()
	s := &SSH{Root: root}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	must(t, err)
	s.key = string(pem.EncodeToMemory(block))
	allowed, err := ssh.NewPublicKey(public)
	must(t, err)
	s.config = &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() != "git" || string(key.Marshal()) != string(allowed.Marshal()) {
			return nil, errors.New("not a key that may log in")
		}
		return nil, nil
	}}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	elliptical, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	for _, key := range []any{edwards, elliptical} {
		signer, err := ssh.NewSignerFromKey(key)
		must(t, err)
		s.config.AddHostKey(signer)
		s.HostKeys = append(s.HostKeys, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	}
	s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.Address = s.listener.Addr().String()
	s.running.Go(s.accept)
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.running.Wait()
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Credential logs in and pins the first of the host keys.
func (s *SSH) Credential() *schema.RepositoryCredential {
	return &schema.RepositoryCredential{PrivateKey: s.key, HostKeys: s.HostKeys[:1]}
}

// URL is the address of the repository of this name.
func (s *SSH) URL(name string) string { return "ssh://git@" + s.Address + "/" + name }

func (s *SSH) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() { s.serve(conn) })
	}
}

func (s *SSH) serve(raw net.Conn) {
	defer raw.Close()
	conn, channels, requests, err := ssh.NewServerConn(raw, s.config)
	if err != nil {
		return
	}
	defer conn.Close()
	s.running.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() { s.session(channel, requests) })
	}
}

func (s *SSH) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		var line struct{ Command string }
		if request.Type != "exec" || ssh.Unmarshal(request.Payload, &line) != nil {
			_ = request.Reply(false, nil)
			continue
		}
		_ = request.Reply(true, nil)
		status := struct{ Code uint32 }{s.run(channel, line.Command)}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(status))
		return
	}
}

// run runs what was asked for, as a forge's own shell would: git-upload-pack and nothing else.
func (s *SSH) run(channel ssh.Channel, command string) uint32 {
	path, ok := strings.CutPrefix(command, "git-upload-pack '")
	if !ok || !strings.HasSuffix(path, "'") {
		fmt.Fprintln(channel.Stderr(), "only git-upload-pack is served")
		return 1
	}
	path = strings.ReplaceAll(strings.TrimSuffix(path, "'"), `'\''`, "'")
	cmd := exec.Command("git-upload-pack", filepath.Join(s.Root, filepath.Join("/", path)))
	cmd.Env = gitEnvironment(s.Root)
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	// A pipe, so that a program that ended is not waited for until the client hangs up.
	stdin, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return 1
	}
	s.running.Go(func() {
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	})
	if err := cmd.Wait(); err != nil {
		return 1
	}
	return 0
}
