package carried

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// RustReference is the public image that [Rust] stands for, without its tag, which is the
// version as 1.63.
const RustReference = "docker.io/library/rust"

// Rust is the Rust that this machine's `rustc` is, with what links its programs: the C
// compiler's driver, binutils, and the C library to link with.
func Rust(ctx context.Context, cache string) (Image, error) {
	if _, err := exec.LookPath("rustc"); err != nil {
		return Image{}, errors.New("carry Rust: it is not installed; apt-get install cargo libc6-dev")
	}
	out, err := output(ctx, "rustc", "--print", "sysroot")
	if err != nil {
		return Image{}, fmt.Errorf("carry Rust: %w", err)
	}
	sysroot := strings.TrimSpace(out)
	if out, err = output(ctx, filepath.Join(sysroot, "bin/rustc"), "--version"); err != nil {
		return Image{}, fmt.Errorf("carry Rust: %w", err)
	}
	version := strings.TrimPrefix(strings.TrimSpace(out), "rustc ")
	reference := RustReference + ":" + minor(version)
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	return cached(cache, "rust", key+sysroot+version, reference, func(dir string) error {
		t := base()
		programs, err := t.rust(ctx, sysroot)
		if err != nil {
			return err
		}
		linking, err := t.linker(ctx)
		if err != nil {
			return err
		}
		if err := t.libraries(ctx, append(programs, linking...)); err != nil {
			return err
		}
		if err := t.certificates(); err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"cargo"},
		})
	})
}

// rust adds compiler and standard library, at the places they have below their root.
func (t tree) rust(ctx context.Context, sysroot string) ([]string, error) {
	at := "usr/local"
	if sysroot == "/usr" {
		at = "usr" // Debian's: what it loads stands where every library does
	}
	var programs []string
	for _, name := range []string{"cargo", "rustc"} {
		program := filepath.Join(sysroot, "bin", name)
		t.file(at+"/bin/"+name, program, 0o755)
		programs = append(programs, program)
	}
	if sysroot != "/usr" {
		own, err := filepath.Glob(filepath.Join(sysroot, "lib", "*.so*"))
		if err != nil {
			return nil, err
		}
		for _, library := range own {
			t.file(at+"/lib/"+filepath.Base(library), library, 0o644)
		}
	}
	out, err := output(ctx, programs[1], "-vV")
	if err != nil {
		return nil, err
	}
	_, target, _ := strings.Cut(out, "host: ")
	target, _, _ = strings.Cut(target, "\n")
	standard := "lib/rustlib/" + target // its library, and the linker that newer ones bring
	return programs, t.copied(filepath.Join(sysroot, standard), at+"/"+standard, nothing)
}

// linker adds what cc needs to link objects and archives, and no compiler of C.
func (t tree) linker(ctx context.Context) ([]string, error) {
	out, err := output(ctx, "cc", "-print-libgcc-file-name")
	if err != nil {
		return nil, fmt.Errorf("%w; apt-get install gcc libc6-dev", err)
	}
	programs, err := t.directory(filepath.Dir(strings.TrimSpace(out)), func(base string) bool {
		return base == "include" || base == "plugin" || strings.HasPrefix(base, "cc1") || strings.HasSuffix(base, "san.a") || base == "lto1" || base == "g++-mapper-server"
	})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"cc", "gcc", "ld", "ar", "as"} {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("%s is not installed; apt-get install gcc", name)
		}
		t.file("usr/bin/"+name, program, 0o755)
		programs = append(programs, program)
	}
	// The libraries themselves too: those to link with name them.
	files, err := output(ctx, "dpkg", "-L", "libc6-dev", "libc6")
	if err != nil {
		return nil, fmt.Errorf("%w; apt-get install libc6-dev", err)
	}
	for file := range strings.FieldsSeq(files) {
		library := strings.HasPrefix(file, "/usr/lib/") || strings.HasPrefix(file, "/lib/")
		if library && path.Ext(file) != ".conf" && !strings.Contains(file, "/gconv/") && !isDirectory(file) {
			if err := t.machine(file); err != nil {
				return nil, err
			}
		}
	}
	return programs, nil
}
