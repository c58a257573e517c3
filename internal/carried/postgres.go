package carried

import (
	"context"
	_ "embed"
	"fmt"
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
	if err := installed(postgresLibrary+"/bin/postgres", "postgresql-15"); err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", PostgresReference, err)
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
	for _, root := range []string{postgresLibrary, postgresShare, "/usr/share/zoneinfo", "/usr/lib/locale/C.utf8"} {
		found, err := t.directory(root, func(base string) bool {
			switch base {
			case "bitcode", "pgxs", "man", "posix", "right":
				return true
			}
			return strings.HasPrefix(base, "llvmjit")
		})
		if err != nil {
			return nil, err
		}
		programs = append(programs, found...)
	}
	if err := t.libraries(ctx, programs); err != nil {
		return nil, err
	}
	t.dir("var/lib/postgresql", 0o755)
	t.dir("var/run/postgresql", 0o1777)
	t.text("usr/bin/docker-entrypoint.sh", postgresEntrypoint, 0o755)
	return t, t.busybox(ctx, program)
}
