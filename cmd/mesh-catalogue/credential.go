package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// databaseURL reads the file at path: a credential's JSON, or a bare postgres:// URL. What it
// says of a file it cannot use holds nothing of the file's content.
func databaseURL(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read database credential: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") {
		return text, nil
	}
	var credential schema.Credential
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&credential); err != nil {
		return "", fmt.Errorf("read database credential %s: neither a postgres:// URL nor a credential's JSON", path)
	}
	address, err := credentialURL(credential)
	if err != nil {
		return "", fmt.Errorf("read database credential %s: %w", path, err)
	}
	return address, nil
}

func credentialURL(c schema.Credential) (string, error) {
	if c.URL != "" {
		return c.URL, nil
	}
	if c.Host == "" || c.User == "" {
		return "", errors.New("it has neither a url nor a host and a user")
	}
	if c.Port == 0 {
		c.Port = 5432
	}
	if c.Database == "" {
		c.Database = "mesh"
	}
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(c.User, c.Password),
		Host:   net.JoinHostPort(c.Host, strconv.Itoa(c.Port)),
		Path:   "/" + c.Database,
	}
	if c.CA != "" {
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslinline": {"true"}, "sslrootcert": {c.CA}}.Encode()
	}
	return u.String(), nil
}
