// Package apiclient calls a controller over HTTPS, as package api describes it.
package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
)

// ContextFile says how to reach a mesh: the controller's URL, the fingerprint its
// certificate is checked against, and the operator's token. It is kept at mode 0600.
type ContextFile struct {
	Mesh        string `json:"mesh"`
	URL         string `json:"url"`
	Fingerprint string `json:"fingerprint"`
	Token       string `json:"token"`
}

// ReadContext reads a context file, and refuses one that others can read.
func ReadContext(path string) (ContextFile, error) {
	var file ContextFile
	info, err := os.Stat(path)
	if err != nil {
		return file, fmt.Errorf("read context: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return file, fmt.Errorf("read context %s: others can read it (mode %04o); run chmod 600 on it", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return file, fmt.Errorf("read context: %w", err)
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return file, fmt.Errorf("read context %s: %w", path, err)
	}
	if file.URL == "" || file.Token == "" || file.Fingerprint == "" {
		return file, fmt.Errorf("read context %s: url, fingerprint and token are all needed", path)
	}
	return file, nil
}

// Client calls a controller.
type Client struct {
	url   string
	token string
	http  *http.Client
}

// maxAnswer bounds what a client reads of one answer, in bytes.
const maxAnswer = 64 << 20

// New makes a client for the mesh a context file describes.
func New(file ContextFile) *Client {
	config := pki.ClientConfig(file.Fingerprint)
	config.ServerName = pki.ControllerName
	transport := &http.Transport{
		TLSClientConfig:       config,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		ForceAttemptHTTP2:     true,
	}
	return &Client{url: file.URL, token: file.Token, http: &http.Client{Transport: transport}}
}

// Close gives the client's connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ErrUnreachable is in the chain of an error when the controller did not answer at all.
var ErrUnreachable = errors.New("the controller did not answer")

// Post calls a method by its path, with its input, and gives its answer. An error is an
// [*api.Error] where the controller gave one, and has [ErrUnreachable] in its chain where it
// gave no answer.
func (c *Client) Post(ctx context.Context, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", c.url, err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, c.url, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%w whole: %w", ErrUnreachable, err)
	}
	if response.StatusCode/100 == 2 {
		return answer, nil
	}
	problem := &api.Error{}
	if json.Unmarshal(answer, problem) != nil || problem.Message == "" {
		problem = &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("the controller answered %s", response.Status)}
	}
	return nil, problem
}
