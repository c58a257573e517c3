package carried

import (
	"context"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// PythonReference is the public image that [Python] stands for, without its tag, which is
// the version as 3.11.
const PythonReference = "docker.io/library/python"

// debianPython is Debian's, whatever else stands on PATH before it.
const debianPython = "/usr/bin/python3"

// Python is Debian's Python with pip.
func Python(ctx context.Context, cache string) (Image, error) {
	if err := installed(debianPython, "python3"); err != nil {
		return Image{}, fmt.Errorf("carry Python: %w", err)
	}
	out, err := output(ctx, debianPython, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
	if err != nil {
		return Image{}, fmt.Errorf("carry Python: %w", err)
	}
	version := strings.TrimSpace(out)
	reference := PythonReference + ":" + version
	const pip = "/usr/lib/python3/dist-packages/pip"
	if err := installed(pip, "python3-pip"); err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	return cached(cache, "python", key, reference, func(dir string) error {
		t := base()
		program := "/usr/bin/python" + version
		programs, err := t.directory("/usr/lib/python"+version, leftOutOfPython)
		if err != nil {
			return err
		}
		for _, library := range []string{pip, "/usr/lib/python3/dist-packages/_distutils_hack", "/usr/lib/python3/dist-packages/setuptools", "/usr/lib/python3/dist-packages/pkg_resources", "/usr/lib/python3/dist-packages/wheel"} {
			if installed(library, "") != nil {
				continue // what this pip does without
			}
			more, err := t.directory(library, leftOutOfPython)
			if err != nil {
				return err
			}
			programs = append(programs, more...)
		}
		if err := t.machine(program); err != nil {
			return err
		}
		if err := t.libraries(ctx, append(programs, program)); err != nil {
			return err
		}
		t.link("usr/bin/python3", path.Base(program))
		t.dir("usr/local/bin", 0o755)
		if err := t.certificates(); err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"python3"},
		})
	})
}

func leftOutOfPython(base string) bool {
	switch base {
	case "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "EXTERNALLY-MANAGED":
		return true
	}
	return strings.HasPrefix(base, "config-3")
}
