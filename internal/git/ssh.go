package git

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"

	"github.com/mesh-control/mesh/internal/giturl"
)

var errServerNotFound = errors.New("the server knows no such repository")

// sshSession is git-upload-pack run by an ssh server. The connection ends with the context it
// was opened under, whatever it waits for.
type sshSession struct {
	conn    *ssh.Client
	running *ssh.Session
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  *saying
	stop    func() bool
}

func dialSSH(ctx context.Context, u giturl.URL, credential *Credential) (*sshSession, error) {
	config, err := sshConfig(u.User, credential)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(u.Host, cmp.Or(u.Port, "22"))
	raw, err := (&net.Dialer{Timeout: handshakeTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	s, err := startSSH(raw, address, config, u.Path)
	if err != nil {
		stop()
		return nil, errors.Join(ctx.Err(), err, raw.Close())
	}
	s.stop = stop
	return s, nil
}

func startSSH(raw net.Conn, address string, config *ssh.ClientConfig, path string) (*sshSession, error) {
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	conn, channels, requests, err := ssh.NewClientConn(raw, address, config)
	if err != nil {
		return nil, err
	}
	s := &sshSession{conn: ssh.NewClient(conn, channels, requests), stderr: &saying{}}
	running, err := s.conn.NewSession()
	if err != nil {
		return nil, err
	}
	s.running = running
	running.Stderr = s.stderr
	if s.stdin, err = running.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := running.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.stdout = bufio.NewReaderSize(stdout, 64<<10)
	if err := running.Start("git-upload-pack " + quote(path)); err != nil {
		return nil, err
	}
	return s, raw.SetDeadline(time.Time{})
}

// quote makes one word of a path for the server's shell.
func quote(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

// AdvertisedReferencesContext implements [session].
func (s *sshSession) AdvertisedReferencesContext(context.Context) (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	err := refs.Decode(s.stdout)
	var said *pktline.ErrorLine
	switch {
	case err == nil && refs.IsEmpty(), errors.Is(err, packp.ErrEmptyAdvRefs):
		return nil, transport.ErrEmptyRemoteRepository
	case errors.As(err, &said):
		return nil, explainSaid(said.Text, err)
	case err != nil:
		return nil, s.explain(err)
	}
	transport.FilterUnsupportedCapabilities(refs.Capabilities)
	return refs, nil
}

// lastWords is how long a server that ended may take to say why.
const lastWords = 5 * time.Second

// explain makes an error of what the server said. That comes by a way of its own, so that the
// end of the answer may be seen before it.
func (s *sshSession) explain(err error) error {
	ended := make(chan struct{})
	go func() {
		_ = s.running.Wait() // its error says no more than that the program failed
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lastWords):
	}
	return explainSaid(s.stderr.text(), err)
}

// explainSaid makes an error of what a server said before it ended.
func explainSaid(text string, err error) error {
	lower := strings.ToLower(text)
	for _, phrase := range []string{"does not appear to be a git repository", "repository not found", "does not exist", "no such", "could not be found", "cannot find repository"} {
		if strings.Contains(lower, phrase) {
			return fmt.Errorf("%w: %s", errServerNotFound, text)
		}
	}
	if text == "" {
		return err
	}
	return fmt.Errorf("the server says: %s", text)
}

// UploadPack implements [session].
func (s *sshSession) UploadPack(_ context.Context, request *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	var out bytes.Buffer
	if err := request.UploadRequest.Encode(&out); err != nil {
		return nil, err
	}
	if err := request.UploadHaves.Encode(&out, false); err != nil {
		return nil, err
	}
	if err := pktline.NewEncoder(&out).EncodeString("done\n"); err != nil {
		return nil, err
	}
	if _, err := s.stdin.Write(out.Bytes()); err != nil {
		return nil, s.explain(err)
	}
	response := packp.NewUploadPackResponse(request)
	if err := response.Decode(io.NopCloser(s.stdout)); err != nil {
		return nil, s.explain(err)
	}
	return response, nil
}

// Close ends the connection.
func (s *sshSession) Close() error {
	s.stop()
	return s.conn.Close()
}
