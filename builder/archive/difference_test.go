package archive_test

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder/archive"
)

func TestDifferenceNamesTheFirstFileAndWhatOfIt(t *testing.T) {
	t.Parallel()
	write := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			body := h.Gname // stands for the content here
			h.Gname, h.Size = "", int64(len(body))
			if h.Typeflag == 0 {
				h.Typeflag = tar.TypeReg
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write([]byte(body))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	long := strings.Repeat("x", 100<<10)
	base := write(tar.Header{Name: "a", Mode: 0o644, Gname: "one"}, tar.Header{Name: "b", Mode: 0o644, Gname: long + "end"})
	for want, other := range map[string][]byte{
		"":                                  base,
		`a: differs at byte 2, "e" and "X"`: write(tar.Header{Name: "a", Mode: 0o644, Gname: "onX"}, tar.Header{Name: "b", Mode: 0o644, Gname: long + "end"}),
		`a: differs at byte 3, "" and "s"`:  write(tar.Header{Name: "a", Mode: 0o644, Gname: "ones"}, tar.Header{Name: "b", Mode: 0o644, Gname: long + "end"}),
		"a: has mode 0644 and 0755":         write(tar.Header{Name: "a", Mode: 0o755, Gname: "one"}, tar.Header{Name: "b", Mode: 0o644, Gname: long + "end"}),
		"b: differs at byte 102400":         write(tar.Header{Name: "a", Mode: 0o644, Gname: "one"}, tar.Header{Name: "b", Mode: 0o644, Gname: long + "END"}),
		"b is only in the first":            write(tar.Header{Name: "a", Mode: 0o644, Gname: "one"}),
		"aa is only in the second":          write(tar.Header{Name: "a", Mode: 0o644, Gname: "one"}, tar.Header{Name: "aa", Mode: 0o644}),
		"a: is of type":                     write(tar.Header{Name: "a", Mode: 0o644, Typeflag: tar.TypeSymlink, Linkname: "b"}),
	} {
		got, err := archive.Difference(bytes.NewReader(base), bytes.NewReader(other))
		if err != nil || !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}
