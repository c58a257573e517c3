package clone_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/internal/testenv"
)

// get clones and closes after the test, and looks that nothing stays.
func get(t *testing.T, req clone.Request) *clone.Clone {
	t.Helper()
	req.Directory = t.TempDir()
	c, err := clone.Get(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(req.Directory); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	return c
}

// pack gives the archive of a directory.
func pack(t *testing.T, c *clone.Clone, dir string) ([]byte, error) {
	t.Helper()
	entries, err := c.Entries(dir)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = archive.Pack(&out, entries)
	return out.Bytes(), err
}

// file is one of an archive.
type file struct {
	mode    int64
	content string
}

func unpack(t *testing.T, data []byte) map[string]file {
	t.Helper()
	files := map[string]file{}
	for reader := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeDir {
			files[header.Name] = file{header.Mode, string(content) + header.Linkname}
		}
	}
}

func packed(t *testing.T, c *clone.Clone, dir string) []byte {
	t.Helper()
	data, err := pack(t, c, dir)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func reason(err error) string {
	var e *clone.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

func TestZooChangeOfModeAloneIsAChange(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("a/run", "#!/bin/sh\n")
	repo.Commit("plain")
	before := packed(t, get(t, clone.Request{Repository: repo.URL()}), "a")
	if err := os.Chmod(filepath.Join(repo.Dir, "a/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	repo.Commit("executable")
	after := packed(t, get(t, clone.Request{Repository: repo.URL()}), "a")
	if bytes.Equal(before, after) {
		t.Error("the archive is the same")
	}
	if was, is := unpack(t, before)["run"].mode, unpack(t, after)["run"].mode; was != 0o644 || is != 0o755 {
		t.Errorf("mode was %o and is %o", was, is)
	}
}

func TestZooLinksStayInsideOrAreRefused(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	links := map[string]string{
		"inside":   "deep/../file",
		"sibling":  "../inside/file",
		"out":      "../../../etc/passwd",
		"absolute": "/etc/passwd",
		"loop":     "link",
	}
	for dir, target := range links {
		repo.Write(dir+"/file", dir)
		repo.Write(dir+"/deep/file", dir)
		if err := os.Symlink(target, filepath.Join(repo.Dir, dir, "link")); err != nil {
			t.Fatal(err)
		}
	}
	repo.Commit("links")
	c := get(t, clone.Request{Repository: repo.URL()})
	for dir, target := range links {
		data, err := pack(t, c, dir)
		var refused *archive.Refused
		switch {
		case dir == "inside" && err != nil:
			t.Errorf("a link inside, beside bad ones elsewhere: %v", err)
		case dir == "inside":
			if got := unpack(t, data)["link"].content; got != target {
				t.Errorf("the link leads to %q, was committed as %q", got, target)
			}
		case !errors.As(err, &refused) || refused.Name != "link":
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestZooNamesAreTheBytesCommitted(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	names := []string{
		"with space", " leading", `quo"te`, "apo'strophe", "new\nline", "tab\there", "-option", "back\\slash", "aux.txt", "con",
		"composed-\u00e9", "decomposed-e\u0301", "snow\u2603", "dollar$HOME", "semi;colon", "%41", "#", "*",
	}
	want := map[string]file{}
	for _, name := range names {
		repo.Write("x/"+name, name)
		want[name] = file{0o644, name}
	}
	repo.Commit("names")
	got := unpack(t, packed(t, get(t, clone.Request{Repository: repo.URL()}), "x"))
	if len(got) != len(want) {
		t.Errorf("%d names, want %d: %v", len(got), len(want), got)
	}
	for name, f := range want {
		if got[name] != f {
			t.Errorf("%q holds %+v", name, got[name])
		}
	}
}

// Names that differ in case alone would be one file on some machines: an archive refuses them,
// by both names; an image's context, which stays on Linux, has both.
func TestZooTwinsThatDifferInCase(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("x/Twin", "1")
	repo.Write("x/twin", "2")
	repo.Commit("twins")
	c := get(t, clone.Request{Repository: repo.URL()})
	_, err := pack(t, c, "x")
	var refused *archive.Refused
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "Twin") || !strings.Contains(err.Error(), "twin") {
		t.Errorf("%v", err)
	}
	entries, err := c.Entries("x")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := archive.PackContext(&out, entries); err != nil {
		t.Fatal(err)
	}
	if got := unpack(t, out.Bytes()); got["Twin"].content != "1" || got["twin"].content != "2" {
		t.Errorf("%v", got)
	}
}

// Whatever the machine and the repository say of line ends and filters, the bytes are the blobs'.
func TestZooLineEndsAndFiltersChangeNothing(t *testing.T) {
	home := t.TempDir()
	marker := filepath.Join(home, "ran")
	hostile := "[core]\n autocrlf = true\n eol = crlf\n hooksPath = " + home + "\n symlinks = false\n fileMode = false\n" +
		"[filter \"evil\"]\n smudge = touch " + marker + "; tr a-z A-Z\n required = true\n[url \"file:///nowhere\"]\n insteadOf = http://\n" +
		"[credential]\n helper = \"!touch " + marker + "\"\n[protocol]\n allow = never\n"
	for _, name := range []string{".gitconfig", "system"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(hostile), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	repo := testenv.Git(t)
	repo.Write("x/unix", "a\nb\n")
	repo.Write("x/dos", "a\r\nb\r\n")
	repo.Write("x/ident", "$Id$\n")
	repo.Write("x/secret", "left out of exports\n")
	repo.Commit("before there are attributes")
	repo.Write(".gitattributes", "* text eol=crlf ident filter=evil\nx/secret export-ignore\n")
	repo.Run("add", ".gitattributes")
	repo.Run("commit", "--quiet", "--message", "attributes")
	url := repo.URL()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, ".gitconfig"))
	t.Setenv("GIT_CONFIG_SYSTEM", filepath.Join(home, "system"))
	t.Setenv("GIT_ASKPASS", "/bin/false")
	for _, req := range []clone.Request{{Repository: url}, {Repository: repo.Bare, AllowLocal: true}} {
		got := unpack(t, packed(t, get(t, req), "x"))
		for name, want := range map[string]string{"unix": "a\nb\n", "dos": "a\r\nb\r\n", "ident": "$Id$\n", "secret": "left out of exports\n"} {
			if got[name].content != want {
				t.Errorf("%s: %s is %q, was committed as %q", req.Repository, name, got[name].content, want)
			}
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a command of the machine's git configuration was run")
	}
}

func TestZooLFSPointersAreRefusedAndLookalikesShip(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 1\n"
	repo.Write("pointer/x", pointer)
	repo.Write("old/x", strings.Replace(pointer, "git-lfs", "hawser", 1))
	repo.Write("text/x", "# "+pointer)
	repo.Write("text/long", pointer+strings.Repeat("x", 2000))
	repo.Write("text/short", "version")
	repo.Commit("pointers")
	c := get(t, clone.Request{Repository: repo.URL()})
	for _, dir := range []string{"pointer", "old"} {
		if _, err := c.Entries(dir); reason(err) != clone.ReasonLFS || !strings.Contains(err.Error(), dir+"/x") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if got := unpack(t, packed(t, c, "text")); len(got) != 3 {
		t.Errorf("packed %v", got)
	}
}
