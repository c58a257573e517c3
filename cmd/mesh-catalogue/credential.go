package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
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
		file, err := keepCA(c.CA)
		if err != nil {
			return "", err
		}
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {file}}.Encode()
	}
	return u.String(), nil
}

// keepCA writes the authority where the driver, which takes only files, reads it. The name
// follows from the content, so that starting again adds no second one.
func keepCA(pem string) (string, error) {
	file := filepath.Join(os.TempDir(), fmt.Sprintf("mesh-catalogue-ca-%x.pem", sha256.Sum256([]byte(pem))))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", fmt.Errorf("keep the database's authority: %w", err)
	}
	if err := os.WriteFile(file, []byte(pem), 0o600); err != nil {
		return "", fmt.Errorf("keep the database's authority: %w", err)
	}
	return file, nil
}
