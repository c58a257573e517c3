package carried

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// BusyboxReference is the public image that [Busybox] stands for.
const BusyboxReference = "docker.io/library/busybox:1.35"

// Busybox is the shell and the small tools, from Debian's busybox-static.
func Busybox(ctx context.Context, cache string) (Image, error) {
	program, err := findBusybox()
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", BusyboxReference, err)
	}
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", BusyboxReference, err)
	}
	return cached(cache, "busybox", key, BusyboxReference, func(dir string) error {
		t := base()
		if err := t.busybox(ctx, program); err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"sh"},
		})
	})
}

// findBusybox gives a busybox that runs without any library.
func findBusybox() (string, error) {
	const advice = "apt-get install busybox-static"
	program, err := exec.LookPath("busybox")
	if err != nil {
		return "", errors.New("busybox is not installed; " + advice)
	}
	file, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", program, err)
	}
	defer file.Close()
	for _, section := range file.Progs {
		if section.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s needs libraries; %s", program, advice)
		}
	}
	return program, nil
}

// busybox adds the program, and a link for each of its tools.
func (t tree) busybox(ctx context.Context, program string) error {
	list, err := output(ctx, program, "--list")
	if err != nil {
		return err
	}
	t.file("usr/bin/busybox", program, 0o755)
	for tool := range strings.FieldsSeq(list) {
		at := path.Join("usr/bin", tool)
		if _, taken := t[at]; !taken {
			t.link(at, "busybox")
		}
	}
	return nil
}
