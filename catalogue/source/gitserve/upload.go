package gitserve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// advertise answers where every ref stands.
func advertise(w http.ResponseWriter, _ *http.Request, repository *filesystem.Storage) error {
	refs, err := advertised(repository)
	if err != nil {
		return err
	}
	refs.Prefix = [][]byte{[]byte("# service=" + service), pktline.Flush}
	w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
	return refs.Encode(w)
}

func advertised(repository *filesystem.Storage) (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	for _, c := range []capability.Capability{capability.Shallow, capability.Sideband64k, capability.NoProgress, capability.OFSDelta} {
		if err := refs.Capabilities.Set(c); err != nil {
			return nil, err
		}
	}
	all, err := repository.IterReferences()
	if err != nil {
		return nil, fmt.Errorf("list refs: %w", err)
	}
	defer all.Close()
	err = all.ForEach(func(ref *plumbing.Reference) error {
		if ref.Type() != plumbing.HashReference || ref.Name() == plumbing.HEAD {
			return nil
		}
		refs.References[ref.Name().String()] = ref.Hash()
		if tag, err := object.GetTag(repository, ref.Hash()); err == nil {
			if commit, err := tag.Commit(); err == nil {
				refs.Peeled[ref.Name().String()] = commit.Hash
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list refs: %w", err)
	}
	return refs, advertiseHead(repository, refs)
}

func advertiseHead(repository *filesystem.Storage, refs *packp.AdvRefs) error {
	head, err := repository.Reference(plumbing.HEAD)
	if err != nil {
		return nil //nolint:nilerr // a repository without HEAD has refs all the same
	}
	if head.Type() == plumbing.SymbolicReference {
		if _, born := refs.References[head.Target().String()]; !born {
			return nil
		}
		if err := refs.AddReference(head); err != nil {
			return err
		}
		head, err = storer.ResolveReference(repository, head.Target())
		if err != nil {
			return fmt.Errorf("resolve HEAD: %w", err)
		}
	}
	hash := head.Hash()
	refs.Head = &hash
	return nil
}

// negotiation is one request: what the client wants, has, and where its history is cut.
type negotiation struct {
	packp.UploadRequest
	haves []plumbing.Hash // those this repository has too
	done  bool
	// asked: something followed the wants. A client that deepens first sends those alone, to
	// learn where its history will end, and takes any word beyond that for an error.
	asked bool
}

var errProtocol = errors.New("not a request of git's")

func readNegotiation(r io.Reader, repository *filesystem.Storage) (*negotiation, error) {
	n := &negotiation{UploadRequest: *packp.NewUploadRequest()}
	if err := n.Decode(r); err != nil {
		return nil, fmt.Errorf("%w: %w", errProtocol, err)
	}
	if depth, ok := n.Depth.(packp.DepthCommits); !ok || depth < 0 {
		return nil, fmt.Errorf("%w: only a depth in commits is served", errProtocol)
	}
	lines := pktline.NewScanner(r)
	for lines.Scan() {
		n.asked = true
		line := bytes.TrimSpace(lines.Bytes())
		switch hash, isHave := bytes.CutPrefix(line, []byte("have ")); {
		case isHave:
			have := plumbing.NewHash(string(hash))
			if repository.HasEncodedObject(have) == nil {
				n.haves = append(n.haves, have)
			}
		case bytes.Equal(line, []byte("done")):
			n.done = true
			return n, nil
		}
	}
	return n, lines.Err()
}

// upload answers a request with a pack, or with what is held in common while the client is
// still telling. Without the multi_ack capability that is one ACK, or a NAK (git's
// Documentation/gitprotocol-pack).
func upload(w http.ResponseWriter, r *http.Request, repository *filesystem.Storage) error {
	content, err := body(r)
	if err != nil {
		return err
	}
	n, err := readNegotiation(content, repository)
	if err != nil {
		return err
	}
	if err := permitted(repository, n.Wants); err != nil {
		return err
	}
	selected, err := choose(repository, n)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-"+service+"-result")
	if depth, _ := n.Depth.(packp.DepthCommits); depth > 0 {
		if err := selected.shallow.Encode(w); err != nil {
			return err
		}
	}
	if !n.asked {
		return nil
	}
	lines := pktline.NewEncoder(w)
	if len(n.haves) > 0 {
		err = lines.Encodef("ACK %s\n", n.haves[0])
	} else {
		err = lines.EncodeString("NAK\n")
	}
	if err != nil || !n.done {
		return err
	}
	if !n.Capabilities.Supports(capability.Sideband64k) {
		return writePack(r.Context(), w, repository, selected.objects)
	}
	if err := writePack(r.Context(), sideband.NewMuxer(sideband.Sideband64k, w), repository, selected.objects); err != nil {
		return err
	}
	return lines.Flush()
}

// reachLimit bounds the search for a commit that is no ref's tip any more.
const reachLimit = 10_000

// permitted refuses what no ref reaches: a commit that was taken back is not to be had. A
// ref may have moved on since it was advertised, so ancestors of tips are served.
func permitted(repository *filesystem.Storage, wants []plumbing.Hash) error {
	refs, err := advertised(repository)
	if err != nil {
		return err
	}
	tips := map[plumbing.Hash]bool{}
	for name, hash := range refs.References {
		tips[hash] = true
		if peeled, ok := refs.Peeled[name]; ok {
			tips[peeled] = true
		}
	}
	if refs.Head != nil {
		tips[*refs.Head] = true
	}
	missing := map[plumbing.Hash]bool{}
	for _, want := range wants {
		if !tips[want] {
			missing[want] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	seen := map[plumbing.Hash]bool{}
	queue := make([]plumbing.Hash, 0, len(tips))
	for tip := range tips {
		queue = append(queue, tip)
	}
	for len(queue) > 0 && len(missing) > 0 && len(seen) < reachLimit {
		hash := queue[0]
		queue = queue[1:]
		delete(missing, hash)
		commit, err := object.GetCommit(repository, hash)
		if err != nil || seen[hash] {
			continue // a tag or a blob has no ancestors
		}
		seen[hash] = true
		queue = append(queue, commit.ParentHashes...)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: a commit no ref reaches is wanted", errProtocol)
	}
	return nil
}
