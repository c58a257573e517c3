package carried

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
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
