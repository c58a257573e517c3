package archive_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mesh-control/mesh/builder/archive"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func file(name, text string) archive.Entry {
	return archive.Entry{Name: name, Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

func program(name, text string) archive.Entry {
	e := file(name, text)
	e.Kind = archive.Executable
	return e
}

func link(name, target string) archive.Entry {
	return archive.Entry{Name: name, Kind: archive.Link, Target: target}
}

// sample has everything an archive may hold, names the order of which is easily got wrong,
// a name and a link longer than ustar has room for, and one outside ASCII.
func sample() []archive.Entry {
	long := strings.Repeat("long/", 40) + strings.Repeat("n", 120)
	return []archive.Entry{
		file("a.txt", "a"), file("a/x", "x"), file("a-b", "ab"), program("bin/run", "#!/bin/sh\n"),
		link("bin/link", "../a/x"), link("dangling", "nowhere"), file(long, "deep"), link("l", long),
		file("zz/\u00fcml\u00e4ut", "utf-8"), {Name: "empty", Kind: archive.Directory}, file("none", ""),
	}
}

func pack(t testing.TB, entries []archive.Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := archive.Pack(&b, entries); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// goldenSample is the digest of sample. It may never change: nodes would be behind for nothing.
const goldenSample = "5961173dfa5bd04db870073680d787b214e42ad494858448e071b57e8e9ad6c9"

func TestS1_091_ArchiveHasTheGoldenDigest(t *testing.T) {
	t.Parallel()
	if got := digest(pack(t, sample())); got != goldenSample {
		t.Errorf("digest %s, want %s", got, goldenSample)
	}
}

func TestS1_088_EntriesAreInOneOrderWhateverTheirOrderWas(t *testing.T) {
	t.Parallel()
	want := pack(t, sample())
	for range 20 {
		shuffled := sample()
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if !bytes.Equal(pack(t, shuffled), want) {
			t.Fatal("the order of entries changes the archive")
		}
	}
	var names []string
	for _, h := range headers(t, want) {
		names = append(names, h.Name)
	}
	if !slices.IsSorted(names) || len(names) < len(sample()) {
		t.Errorf("names are not sorted by bytes: %q", names)
	}
}

func TestS1_089_EntriesHaveNoTime(t *testing.T) {
	t.Parallel()
	for _, h := range headers(t, pack(t, sample())) {
		if !h.ModTime.Equal(time.Unix(0, 0)) || !h.AccessTime.IsZero() || !h.ChangeTime.IsZero() {
			t.Errorf("%s has a time: %v %v %v", h.Name, h.ModTime, h.AccessTime, h.ChangeTime)
		}
	}
}

func TestS1_090_EntriesHaveNoOwnerAndNoOriginalPath(t *testing.T) {
	t.Parallel()
	for _, h := range headers(t, pack(t, sample())) {
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s has an owner: %+v", h.Name, h)
		}
		if strings.HasPrefix(h.Name, "/") || strings.HasPrefix(h.Name, "./") {
			t.Errorf("%s is not relative", h.Name)
		}
		for key := range h.PAXRecords {
			if key != "path" && key != "linkpath" {
				t.Errorf("%s has the record %s", h.Name, key)
			}
		}
	}
}

func headers(t testing.TB, data []byte) []*tar.Header {
	t.Helper()
	var all []*tar.Header
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
}

func TestUnpackGivesWhatWasPacked(t *testing.T) {
	t.Parallel()
	data := pack(t, sample())
	dir := filepath.Join(t.TempDir(), "out")
	if err := archive.Unpack(bytes.NewReader(data), dir, int64(len(data)), 0); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, h := range headers(t, data) {
		want[strings.TrimSuffix(h.Name, "/")] = fs.FileMode(h.Mode).Perm().String()
	}
	for _, e := range sample() {
		full := filepath.Join(dir, e.Name)
		info, err := os.Lstat(full)
		if err != nil {
			t.Error(err)
			continue
		}
		switch e.Kind {
		case archive.Link:
			if got, _ := os.Readlink(full); got != e.Target {
				t.Errorf("%s leads to %q", e.Name, got)
			}
		case archive.Directory:
			if info.Mode().Perm() != 0o755 {
				t.Errorf("%s has mode %v", e.Name, info.Mode())
			}
		default:
			if info.Mode().Perm().String() != want[e.Name] {
				t.Errorf("%s has mode %v, want %s", e.Name, info.Mode(), want[e.Name])
			}
			r, _ := e.Open()
			text, _ := io.ReadAll(r)
			if got, err := os.ReadFile(full); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%s holds %q, %v", e.Name, got, err)
			}
		}
		delete(want, e.Name)
	}
	for name := range want {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.IsDir() || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

func TestUnpackDropsLeadingComponents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := pack(t, []archive.Entry{file("top/a/x", "x"), link("top/l", "a/x")})
	if err := archive.Unpack(bytes.NewReader(data), dir, 1<<20, 1); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "l")); err != nil || string(text) != "x" {
		t.Errorf("%q, %v", text, err)
	}
	err := archive.Unpack(bytes.NewReader(data), t.TempDir(), 1<<20, 2)
	wantRefusal(t, err, "leading components")
}

func TestUnpackRefusesADirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := archive.Unpack(bytes.NewReader(pack(t, sample())), dir, 1<<20, 0); err == nil {
		t.Error("unpacked over somebody's file")
	}
}

func wantRefusal(t testing.TB, err error, text string) {
	t.Helper()
	var r *archive.Refused
	if !errors.As(err, &r) || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want a refusal saying %q", err, text)
	}
}

func TestPackRefusesWhatHostsWould(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entries []archive.Entry
		text    string
	}{
		"absolute":       {[]archive.Entry{file("/etc/passwd", "")}, "absolute"},
		"up":             {[]archive.Entry{file("a/../../b", "")}, `".."`},
		"unclean":        {[]archive.Entry{file("a//b", "")}, "clean"},
		"nothing":        {[]archive.Entry{file("", "")}, "not a name"},
		"twice":          {[]archive.Entry{file("a", ""), file("a", "")}, "twice"},
		"file and dir":   {[]archive.Entry{file("a", ""), file("a/b", "")}, "twice"},
		"case":           {[]archive.Entry{file("Read", ""), file("read", "")}, "only in case"},
		"case of dir":    {[]archive.Entry{file("A/x", ""), file("a/y", "")}, "only in case"},
		"link absolute":  {[]archive.Entry{link("l", "/etc")}, "absolute"},
		"link up":        {[]archive.Entry{link("d/l", "../../x")}, "outside"},
		"link by link":   {[]archive.Entry{link("a/b/up", "../.."), link("m", "a/b/up/../x")}, "outside"},
		"link circle":    {[]archive.Entry{link("a", "b"), link("b", "a")}, "never ends"},
		"link empty":     {[]archive.Entry{link("a", "")}, "nothing"},
		"through a link": {[]archive.Entry{link("a", "b"), file("a/x", "")}, "twice"},
		"long component": {[]archive.Entry{file("a/"+strings.Repeat("x", 256), "")}, "255 bytes"},
		"long path":      {[]archive.Entry{file(strings.Repeat("x/", 2048)+"x", "")}, "4096 bytes"},
		"long target":    {[]archive.Entry{link("a", strings.Repeat("./", 2048)+"b")}, "4096 bytes"},
		"long way":       {[]archive.Entry{link("a", strings.Repeat("b/", 600)+"c"), link(strings.Repeat("b/", 600)+"c", strings.Repeat("../", 600)+"d/"+strings.Repeat("e/", 500))}, "never ends"},
		"many names":     {manyNames(), "64 MiB"},
		"not UTF-8":      {[]archive.Entry{file("\xff", "")}, "UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantRefusal(t, archive.Pack(io.Discard, c.entries), c.text)
		})
	}
	if err := archive.PackContext(io.Discard, []archive.Entry{file("Read", ""), file("read", "")}); err != nil {
		t.Errorf("a context may have names that differ in case: %v", err)
	}
}

// manyNames are names that together are more than an archive may have.
func manyNames() []archive.Entry {
	deep := strings.Repeat(strings.Repeat("x", 250)+"/", 15)
	var all []archive.Entry
	for i := range archive.MaxNames / len(deep) {
		all = append(all, file(fmt.Sprint(deep, i), ""))
	}
	return all
}

// A way that is long and whose links all lead inside is no reason to refuse.
func TestDeepTreesArePackedAndUnpacked(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("x/", 300)
	entries := []archive.Entry{file(deep+"file", "down here"), link("link", deep+"file")}
	for i := range 20 {
		entries = append(entries, file(fmt.Sprint(deep, "n", i), ""))
	}
	var tar bytes.Buffer
	if err := archive.Pack(&tar, entries); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := archive.Unpack(&tar, dir, int64(tar.Len()), 0); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "link")); err != nil || string(text) != "down here" {
		t.Errorf("through the link: %q %v", text, err)
	}
}

func TestPackNoticesAChangedSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{1, 5} {
		e := file("a", "abc")
		e.Size = size
		if err := archive.Pack(io.Discard, []archive.Entry{e}); err == nil {
			t.Errorf("3 bytes were packed as %d", size)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	reg := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	sym := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
	}
	setuid := reg("su")
	setuid.Mode = 0o4755
	for name, c := range map[string]struct {
		headers []*tar.Header
		text    string
	}{
		"absolute":        {[]*tar.Header{reg("/etc/x")}, "absolute"},
		"up":              {[]*tar.Header{reg("a/../../x")}, `".."`},
		"link out":        {[]*tar.Header{sym("l", "../x")}, "outside"},
		"link absolute":   {[]*tar.Header{sym("l", "/etc")}, "absolute"},
		"link by link":    {[]*tar.Header{sym("a/b/up", "../.."), sym("m", "a/b/up/../x")}, "outside"},
		"write by link":   {[]*tar.Header{sym("d", "."), reg("d/x")}, "not a directory"},
		"write over link": {[]*tar.Header{sym("d", "e"), reg("d")}, "twice"},
		"link over dir":   {[]*tar.Header{reg("d/x"), sym("d", "e")}, "twice"},
		"device":          {[]*tar.Header{{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}, "device"},
		"fifo":            {[]*tar.Header{{Typeflag: tar.TypeFifo, Name: "p"}}, "device"},
		"hard link":       {[]*tar.Header{reg("a"), {Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}}, "hard link"},
		"setuid":          {[]*tar.Header{setuid}, "set-user-id"},
		"twice":           {[]*tar.Header{reg("a"), reg("./a")}, "twice"},
		"only case":       {[]*tar.Header{reg("a"), reg("A")}, "only in case"},
		"sparse":          {[]*tar.Header{{Typeflag: tar.TypeReg, Name: "s", Format: tar.FormatPAX, PAXRecords: map[string]string{"GNU.sparse.x": "1"}}}, "sparse"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			dir := filepath.Join(root, "in", "here")
			err := archive.Unpack(bytes.NewReader(raw(t, c.headers)), dir, 1<<20, 0)
			wantRefusal(t, err, c.text)
			if _, err := os.Lstat(filepath.Join(root, "x")); err == nil {
				t.Error("something was written outside")
			}
		})
	}
}

func raw(t testing.TB, headers []*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.PAXRecords != nil {
			// The writer refuses to write what must be refused: put it in by name.
			h = &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Format: tar.FormatPAX, PAXRecords: map[string]string{"XXX.sparse.x": "1"}}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("XXX.sparse.x"), []byte("GNU.sparse.x"))
}

func TestUnpackAcceptsDotSlashAndInnerLinks(t *testing.T) {
	t.Parallel()
	data := raw(t, []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}, {Typeflag: tar.TypeDir, Name: "./a/", Mode: 0o700},
		{Typeflag: tar.TypeReg, Name: "./a/x", Mode: 0o600}, {Typeflag: tar.TypeSymlink, Name: "./a/l", Linkname: "./x"},
		{Typeflag: tar.TypeSymlink, Name: "./up", Linkname: "a/../a/l"},
		{Typeflag: tar.TypeSymlink, Name: "only/link", Linkname: "../a/x"},
	})
	dir := t.TempDir()
	if err := archive.Unpack(bytes.NewReader(data), dir, 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "up")); err != nil {
		t.Error(err)
	}
}

func TestUnpackStopsAtTheAnnouncedSize(t *testing.T) {
	t.Parallel()
	data := pack(t, []archive.Entry{file("big", strings.Repeat("x", 1<<16))})
	if err := archive.Unpack(bytes.NewReader(data), t.TempDir(), int64(len(data)), 0); err != nil {
		t.Error(err)
	}
	for _, limit := range []int64{0, 100, 1 << 16, int64(len(data)) - 1} {
		err := archive.Unpack(bytes.NewReader(data), t.TempDir(), limit, 0)
		if !errors.Is(err, archive.ErrTooLarge) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

func TestUmaskHasNoSay(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	data := pack(t, sample())
	if got := digest(data); got != goldenSample {
		t.Errorf("umask changes the archive: %s", got)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := archive.Unpack(bytes.NewReader(data), dir, 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"a": 0o755, "a/x": 0o644, "bin/run": 0o755, "empty": 0o755} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, sample()), uint8(0))
	f.Add(raw(f, []*tar.Header{{Typeflag: tar.TypeSymlink, Name: "d", Linkname: ".."}, {Typeflag: tar.TypeReg, Name: "d/x"}}), uint8(0))
	f.Add(raw(f, []*tar.Header{{Typeflag: tar.TypeReg, Name: "../x"}}), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, strip uint8) {
		root := t.TempDir()
		dir := filepath.Join(root, "in")
		if archive.Unpack(bytes.NewReader(data), dir, int64(len(data)), int(strip%4)) == nil {
			checkInside(t, dir)
		}
		if names, err := os.ReadDir(root); err != nil || len(names) > 1 {
			t.Fatalf("written outside: %v %v", names, err)
		}
	})
}

// checkInside fails when anything in dir is special, or leads out.
func checkInside(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 {
			t.Errorf("%s is %v", p, d.Type())
		}
		if d.Type()&fs.ModeSymlink != 0 {
			if target, err := filepath.EvalSymlinks(p); err == nil && target != dir && !strings.HasPrefix(target, dir+"/") {
				t.Errorf("%s leads to %s", p, target)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
