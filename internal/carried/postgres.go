package carried

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// PostgresReference is the public image that [Postgres] stands for.
const PostgresReference = "docker.io/library/postgres:15"

const (
	postgresLibrary = "/usr/lib/postgresql/15"
	postgresShare   = "/usr/share/postgresql/15"
)

//go:embed postgres-entrypoint.sh
var postgresEntrypoint string

// Postgres is PostgreSQL 15 from Debian's packages: its files, the libraries they load, and
// busybox for the entrypoint. Just-in-time compilation is left out, with the 100 MB it loads.
func Postgres(ctx context.Context, cache string) (Image, error) {
	program, err := findBusybox()
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", PostgresReference, err)
	}
	if _, err := os.Stat(postgresLibrary + "/bin/postgres"); err != nil {
		return Image{}, fmt.Errorf("carry %s: PostgreSQL 15 is not installed; apt-get install postgresql-15", PostgresReference)
	}
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", PostgresReference, err)
	}
	return cached(cache, "postgres", key+postgresEntrypoint, PostgresReference, func(dir string) error {
		t, err := postgresTree(ctx, program)
		if err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env: []string{
				"PATH=" + postgresLibrary + "/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
				"PG_MAJOR=15", "PGDATA=/var/lib/postgresql/data",
			},
			Entrypoint: []string{"docker-entrypoint.sh"}, Cmd: []string{"postgres"},
			ExposedPorts: map[string]struct{}{"5432/tcp": {}},
			StopSignal:   "SIGINT", // fast shutdown: SIGTERM would wait for every client to leave
		})
	})
}

func postgresTree(ctx context.Context, program string) (tree, error) {
	t := base("postgres")
	var programs []string
	for _, root := range []string{postgresLibrary + "/bin", postgresLibrary + "/lib", postgresShare, "/usr/share/zoneinfo", "/usr/lib/locale/C.utf8"} {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			switch base := filepath.Base(name); {
			case err != nil:
				return err
			case d.IsDir() && (base == "bitcode" || base == "pgxs" || base == "man" || base == "posix" || base == "right"):
				return fs.SkipDir
			case d.IsDir() || strings.HasPrefix(base, "llvmjit"):
				return nil
			}
			if strings.HasPrefix(name, postgresLibrary) {
				programs = append(programs, name)
			}
			return t.machine(name)
		})
		if err != nil {
			return nil, err
		}
	}
	libraries, err := closure(ctx, programs)
	if err != nil {
		return nil, err
	}
	for _, library := range libraries {
		if err := t.machine(library); err != nil {
			return nil, err
		}
	}
	t.dir("var/lib/postgresql", 0o755)
	t.dir("var/run/postgresql", 0o1777)
	t.text("usr/bin/docker-entrypoint.sh", postgresEntrypoint, 0o755)
	return t, t.busybox(ctx, program)
}

var lddLine = regexp.MustCompile(`(?m)^\s+(?:\S+ => )?(/\S+) \(0x`)

// closure gives every library that the programs load when they start.
func closure(ctx context.Context, programs []string) ([]string, error) {
	out, err := output(ctx, "ldd", programs...)
	if err != nil {
		return nil, err
	}
	if _, missing, found := strings.Cut(out, "=> not found"); found {
		return nil, fmt.Errorf("a library is missing on this machine: %.200s", missing)
	}
	seen := map[string]bool{}
	var libraries []string
	for _, match := range lddLine.FindAllStringSubmatch(out, -1) {
		if !seen[match[1]] {
			seen[match[1]] = true
			libraries = append(libraries, match[1])
		}
	}
	return libraries, nil
}
