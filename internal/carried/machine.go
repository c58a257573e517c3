package carried

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// directory adds what stands below a directory of the machine, without what skip names. It
// gives the programs and libraries found, whose own libraries somebody has to add.
func (t tree) directory(root string, skip func(base string) bool) ([]string, error) {
	var programs []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case skip(d.Name()) && d.IsDir():
			return fs.SkipDir
		case skip(d.Name()) || d.IsDir():
			return nil
		case d.Type()&fs.ModeSymlink != 0 && isDirectory(name):
			to, err := os.Readlink(name)
			t.link(name, to)
			return err
		}
		if isProgram(name) {
			programs = append(programs, name)
		}
		return t.machine(name)
	})
	return programs, err
}

// copied adds the files below a directory of the machine at another place, without what skip
// names by its slash path below root. Links that stay inside are kept, other ones left out.
func (t tree) copied(root, at string, skip func(relative string) bool) error {
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		target := path.Join(at, filepath.ToSlash(relative))
		switch {
		case skip(filepath.ToSlash(relative)) && d.IsDir():
			return fs.SkipDir
		case skip(filepath.ToSlash(relative)) || d.IsDir():
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			if err == nil && filepath.IsLocal(filepath.Join(filepath.Dir(relative), to)) {
				t.link(target, to)
			}
			return err
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		t.file(target, name, mode)
		return nil
	})
}

// certificates adds the machine's trusted ones, if it has any.
func (t tree) certificates() error {
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	text, err := os.ReadFile(bundle)
	if err == nil {
		t.text(bundle, string(text), 0o644)
	}
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

func isDirectory(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func isProgram(name string) bool {
	file, err := elf.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	return file.Type == elf.ET_EXEC || file.Type == elf.ET_DYN
}

var lddLine = regexp.MustCompile(`(?m)^\s+(?:\S+ => )?(/\S+) \(0x`)

// libraries adds every library that the programs load when they start.
func (t tree) libraries(ctx context.Context, programs []string) error {
	out, err := output(ctx, "ldd", programs...)
	if err != nil {
		return err
	}
	if _, missing, found := strings.Cut(out, "=> not found"); found {
		return fmt.Errorf("a library is missing on this machine: %.200s", missing)
	}
	for _, match := range lddLine.FindAllStringSubmatch(out, -1) {
		if err := t.machine(match[1]); err != nil {
			return err
		}
	}
	return nil
}

// installed says what to do when a file that a package brings is not there.
func installed(file, packageName string) error {
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%s is not installed; apt-get install %s", packageName, packageName)
	}
	return nil
}

func nothing(string) bool { return false }
