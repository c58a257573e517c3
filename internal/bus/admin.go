package bus

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Admin speaks to the broker's management API, as an administrator.
type Admin struct {
	URL      string // http(s)://host:port
	User     string
	Password string
	Client   *http.Client // nil is one that gives up after 30 seconds
}

// errExists: the broker looked for a user, found none, and then failed to make it.
var errExists = errors.New("management API says that the user exists already")

// vhost is the only one used.
const vhost = "%2F"

// PutAccount makes an account or brings an existing one to what is given. Open connections
// keep what they had: to take rights away, DeleteAccount first.
//
// The user comes first, without rights, and the topic permissions come before the others:
// at no moment may it do more than it shall. The password travels as a salted hash.
func (a Admin) PutAccount(ctx context.Context, account Account) error {
	user := url.PathEscape(account.Name)
	hash, err := hashPassword(account.Password)
	if err != nil {
		return fmt.Errorf("make broker account %s: %w", account.Name, err)
	}
	type object = map[string]string
	type request struct {
		path string
		body object
	}
	requests := []request{{"/api/users/" + user, object{
		"password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": account.Tags,
	}}}
	for _, t := range account.Topics {
		requests = append(requests, request{"/api/topic-permissions/" + vhost + "/" + user, object{
			"exchange": t.Exchange, "write": t.Write, "read": t.Read,
		}})
	}
	requests = append(requests, request{"/api/permissions/" + vhost + "/" + user, object{
		"configure": account.Configure, "write": account.Write, "read": account.Read,
	}})
	for _, r := range requests {
		err := a.call(ctx, http.MethodPut, r.path, r.body, nil)
		if errors.Is(err, errExists) { // somebody else makes it at this moment
			err = a.call(ctx, http.MethodPut, r.path, r.body, nil)
		}
		if err != nil {
			return fmt.Errorf("make broker account %s: %w", account.Name, err)
		}
	}
	return nil
}

// DeleteAccount revokes an account; its connections die at once. One that does not exist is
// deleted already.
func (a Admin) DeleteAccount(ctx context.Context, name string) error {
	err := a.call(ctx, http.MethodDelete, "/api/users/"+url.PathEscape(name), nil, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete broker account %s: %w", name, err)
	}
	return nil
}

// AccountInfo is an account as the broker has it.
type AccountInfo struct {
	Name         string
	PasswordHash string
	Configure    string
	Write        string
	Read         string
	Topics       []TopicPermission
}

// Account looks an account up. ErrNotFound when there is none.
func (a Admin) Account(ctx context.Context, name string) (AccountInfo, error) {
	var user struct {
		Name         string `json:"name"`
		PasswordHash string `json:"password_hash"`
	}
	var permissions []struct{ Configure, Write, Read string }
	var topics []struct{ Exchange, Write, Read string }
	path := "/api/users/" + url.PathEscape(name)
	err := a.call(ctx, http.MethodGet, path, nil, &user)
	if err == nil {
		err = a.call(ctx, http.MethodGet, path+"/permissions", nil, &permissions)
	}
	if err == nil {
		err = a.call(ctx, http.MethodGet, path+"/topic-permissions", nil, &topics)
	}
	if err != nil {
		return AccountInfo{}, fmt.Errorf("look up broker account %s: %w", name, err)
	}
	info := AccountInfo{Name: user.Name, PasswordHash: user.PasswordHash}
	for _, p := range permissions {
		info.Configure, info.Write, info.Read = p.Configure, p.Write, p.Read
	}
	for _, t := range topics {
		info.Topics = append(info.Topics, TopicPermission(t))
	}
	return info, nil
}

// Connection is one open connection of the broker.
type Connection struct {
	Name       string // the broker's own, to close it by
	User       string
	ClientName string // what the client calls itself
	Peer       string
	State      string // running, blocked, blocking, ...
}

// ListConnections lists the broker's connections. It lags a few seconds behind.
func (a Admin) ListConnections(ctx context.Context) ([]Connection, error) {
	var answer []struct {
		Name       string          `json:"name"`
		User       string          `json:"user"`
		Peer       string          `json:"peer_host"`
		State      string          `json:"state"`
		Properties json.RawMessage `json:"client_properties"`
	}
	if err := a.call(ctx, http.MethodGet, "/api/connections", nil, &answer); err != nil {
		return nil, fmt.Errorf("list broker connections: %w", err)
	}
	var connections []Connection
	for _, c := range answer {
		var properties struct {
			Name string `json:"connection_name"`
		}
		_ = json.Unmarshal(c.Properties, &properties) // a list when there are none
		connections = append(connections, Connection{
			Name: c.Name, User: c.User, ClientName: properties.Name, Peer: c.Peer, State: c.State,
		})
	}
	return connections, nil
}

// QueueInfo is a queue as the management API counts it, a few seconds late. For the state of
// the moment, without the unacknowledged, see [Conn.Inspect].
type QueueInfo struct {
	Messages  int `json:"messages"` // ready and unacknowledged
	Unacked   int `json:"messages_unacknowledged"`
	Consumers int `json:"consumers"`
}

// QueueInfo looks a queue up. ErrNotFound when there is none.
func (a Admin) QueueInfo(ctx context.Context, queue string) (QueueInfo, error) {
	var info QueueInfo
	if err := a.call(ctx, http.MethodGet, "/api/queues/"+vhost+"/"+url.PathEscape(queue), nil, &info); err != nil {
		return QueueInfo{}, fmt.Errorf("look up queue %s: %w", queue, err)
	}
	return info, nil
}

// Alarms lists why the broker takes no messages: "memory" and "disk", with the node's name.
func (a Admin) Alarms(ctx context.Context) ([]string, error) {
	var nodes []struct {
		Name   string `json:"name"`
		Memory bool   `json:"mem_alarm"`
		Disk   bool   `json:"disk_free_alarm"`
	}
	if err := a.call(ctx, http.MethodGet, "/api/nodes", nil, &nodes); err != nil {
		return nil, fmt.Errorf("look up broker alarms: %w", err)
	}
	var alarms []string
	for _, n := range nodes {
		if n.Memory {
			alarms = append(alarms, "memory of "+n.Name)
		}
		if n.Disk {
			alarms = append(alarms, "disk of "+n.Name)
		}
	}
	return alarms, nil
}

// call sends one request. Errors carry the broker's reason and never a password.
func (a Admin) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.URL, "/")+path, body)
	if err != nil {
		return err
	}
	request.SetBasicAuth(a.User, a.Password)
	request.Header.Set("Content-Type", "application/json")
	client := a.Client
	if client == nil {
		client = &http.Client{Timeout: 30 * time.Second}
		request.Close = true // its connections would stay behind
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, MaxBody))
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case response.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w: as %s", ErrRefused, a.User)
	case response.StatusCode == http.StatusBadRequest && bytes.Contains(data, []byte("user_already_exists")):
		return errExists
	case response.StatusCode >= 300:
		return fmt.Errorf("management API says %s: %s", response.Status, data[:min(len(data), 500)])
	case out == nil:
		return nil
	}
	return json.Unmarshal(data, out)
}

// hashPassword is the broker's salted form: 4 bytes of salt, then SHA-256 over salt and
// password, in base64 (rabbit_password_hashing_sha256).
func hashPassword(password string) (string, error) {
	if password == "" {
		return "", errors.New("no password given")
	}
	salt := make([]byte, 4)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(salt[:4:4], password...))
	return base64.StdEncoding.EncodeToString(slices.Concat(salt, sum[:])), nil
}
