package clone

import (
	"bytes"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing/object"
)

// pointers are how a pointer into LFS storage begins, now and in its first releases.
var pointers = [][]byte{
	[]byte("version https://git-lfs.github.com/spec/v1\n"),
	[]byte("version https://hawser.github.com/spec/v1\n"),
}

// maxPointer is the size an LFS pointer stays below, by its specification.
const maxPointer = 1024

// refusePointer refuses a file that only says where the file is.
func refusePointer(name string, blob *object.Blob) error {
	if blob.Size < int64(len(pointers[1])) || blob.Size > maxPointer {
		return nil
	}
	reader, err := blob.Reader()
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer reader.Close()
	start, err := io.ReadAll(io.LimitReader(reader, int64(len(pointers[0]))))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	for _, pointer := range pointers {
		if bytes.HasPrefix(start, pointer) {
			return fail(ReasonLFS, "commit the file itself", "%s is a pointer into LFS storage, not the file", name)
		}
	}
	return nil
}
