package composefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"
)

// variables are the values a Compose file may ask for, and which it did.
type variables struct {
	values  map[string]string // of .env
	used    []string
	missing []string
}

func (v *variables) lookup(name string) (string, bool) {
	value, ok := v.values[name]
	if ok {
		v.used = append(v.used, name)
	} else {
		v.missing = append(v.missing, name)
	}
	return value, ok
}

// load reads a Compose file with everything it extends and includes. Paths come out absolute.
func load(ctx context.Context, name, file string) (*types.Project, *variables, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, nil, err
	}
	vars := &variables{values: map[string]string{}}
	if found, err := dotenv.Read(filepath.Join(dir, ".env")); err == nil {
		vars.values = found
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("read .env: %w", err)
	}
	// It warns through its logger of variables without a value, which become notes here.
	logrus.SetOutput(io.Discard)
	project, err := loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: file, Content: text}}, Environment: vars.values,
	}, func(o *loader.Options) {
		o.SetProjectName(name, true)
		o.SkipResolveEnvironment, o.ResolvePaths = true, true
		o.Profiles = []string{"*"}
		o.Interpolate = &interpolation.Options{LookupValue: vars.lookup, TypeCastMapping: o.Interpolate.TypeCastMapping, Substitute: o.Interpolate.Substitute}
	})
	if err != nil {
		message := strings.TrimPrefix(err.Error(), "validating "+file+": ")
		return nil, nil, fmt.Errorf("%s: %s", file, strings.Replace(message, " false schema", " is nothing a Compose file has", 1))
	}
	slices.Sort(vars.missing)
	slices.Sort(vars.used)
	vars.missing, vars.used = slices.Compact(vars.missing), slices.Compact(vars.used)
	return project, vars, nil
}
