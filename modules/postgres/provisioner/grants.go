package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// grant is what a consumer may have: the document the mesh calls Grant, schema 1.
type grant struct {
	Schema    int               `json:"schema"`
	Consumer  string            `json:"consumer"`
	Node      string            `json:"node"`
	Provision string            `json:"provision"`
	User      string            `json:"user"`
	Password  string            `json:"password"`
	Database  string            `json:"database"`
	Wishes    map[string]string `json:"wishes"`
}

// label is how the role of a grant is known as ours, in its comment.
func (g grant) label() string { return labelPrefix + g.Consumer + " on " + g.Node }

const labelPrefix = "mesh grant of "

// identifier keeps names short enough that PostgreSQL cuts none, which would make two one.
var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.-]{0,62}$`)

// readGrants reads the directory. A file that cannot be used is told and its role left as it
// is: unreadable is not withdrawn.
func readGrants(directory string) (grants []grant, unreadable []string, err error) {
	files, err := os.ReadDir(directory)
	if err != nil {
		return nil, nil, err
	}
	var problems []error
	byUser := map[string]string{}
	for _, file := range files {
		name := file.Name()
		if file.IsDir() || strings.HasPrefix(name, ".") || filepath.Ext(name) != ".json" {
			continue
		}
		g, err := readGrant(filepath.Join(directory, name))
		if err == nil && byUser[g.User] != "" {
			err = fmt.Errorf("role %s is that of %s", g.User, byUser[g.User])
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("grant %s: %w", name, err))
			unreadable = append(unreadable, strings.TrimSuffix(name, ".json"))
			continue
		}
		byUser[g.User] = name
		grants = append(grants, g)
	}
	return grants, unreadable, errors.Join(problems...)
}

func readGrant(path string) (grant, error) {
	var g grant
	text, err := os.ReadFile(path)
	if err != nil {
		return g, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&g); err != nil {
		return g, errors.New("is no grant of schema 1") // the decoder's words may repeat a password
	}
	if _, err := decoder.Token(); err != io.EOF {
		return g, errors.New("has something after the grant")
	}
	if g.Database == "" {
		g.Database = g.User
	}
	switch {
	case g.Schema != 1:
		return g, fmt.Errorf("has schema %d, and 1 is known here", g.Schema)
	case g.Consumer == "" || g.Node == "" || g.Password == "":
		return g, errors.New("names no consumer, no node or no password")
	case !identifier.MatchString(g.User) || !identifier.MatchString(g.Database):
		return g, fmt.Errorf("user %q and database %q must be names of at most 63 characters", g.User, g.Database)
	case strings.HasPrefix(g.User, "pg_") || strings.HasPrefix(g.Database, "template") || g.Database == "postgres":
		return g, fmt.Errorf("user %q or database %q is the server's own", g.User, g.Database)
	case filepath.Base(path) != g.Consumer+"."+g.Node+".json":
		return g, fmt.Errorf("is for %s on %s", g.Consumer, g.Node)
	}
	return g, nil
}
