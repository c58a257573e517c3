package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The caps of the token pass. A document beyond them is refused before anything is decoded.
const (
	maxModuleBytes   = 256 << 10
	maxDocumentBytes = 16 << 20
	maxDepth         = 64
	maxModuleItems   = 4096    // in one list or object of a module.json
	maxItems         = 100_000 // in one list or object of the other documents
	maxSafeInteger   = 1<<53 - 1
)

// limits are the caps of one document.
type limits struct {
	bytes int
	items int
}

// node is one value of the text and where it stands.
type node struct {
	kind     jsontext.Kind // '{', '[', '"', '0', 't', 'f' or 'n'
	start    int
	end      int
	key      string // member name, when the parent is an object
	keyStart int
	text     string // decoded string, or the number as written
	children []*node
	dropped  bool // refused already; later steps do not look at it
}

// member gives an object's value by name, or nil.
func (n *node) member(name string) *node {
	if n == nil || n.kind != '{' {
		return nil
	}
	for _, child := range n.children {
		if child.key == name && !child.dropped {
			return child
		}
	}
	return nil
}

// walk follows names and indexes as far as the text goes, and gives the last node found.
func (n *node) walk(steps ...any) (found *node, whole bool) {
	for _, step := range steps {
		var next *node
		switch step := step.(type) {
		case string:
			next = n.member(step)
		case int:
			if n.kind == '[' && step < len(n.children) {
				next = n.children[step]
			}
		}
		if next == nil {
			return n, false
		}
		n = next
	}
	return n, true
}

// kindName says what a value is, as a person would.
func kindName(kind jsontext.Kind) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 't', 'f':
		return "true or false"
	}
	return "null"
}

// joinPath gives the path of a step below path: a name after a dot, quoted when it could
// be misread, or an index in brackets.
func joinPath(path string, step any) string {
	switch step := step.(type) {
	case int:
		return path + "[" + strconv.Itoa(step) + "]"
	case string:
		if step == "" || strings.ContainsFunc(step, func(r rune) bool {
			return !strings.ContainsRune("-_$", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			return path + "[" + strconv.Quote(clip(step)) + "]"
		}
		if path == "" {
			return clip(step)
		}
		return path + "." + clip(step)
	}
	return path
}

// clip keeps what an error quotes short.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// quote is a value as errors show it.
func quote(s string) string { return strconv.Quote(clip(s)) }

// scanner is the token pass: text to tree, refusing what encoding/json lets through.
type scanner struct {
	data  []byte
	dec   *jsontext.Decoder
	limit limits
	found *findings
}

// errStop ends the token pass; its finding is already recorded.
var errStop = errors.New("stopped")

// scan reads one value and nothing after it. A nil tree means the text is not JSON or is
// beyond a cap; the finding says where.
func scan(data []byte, limit limits, found *findings) *node {
	if len(data) > limit.bytes {
		found.add(limit.bytes, "", "the document has %d bytes; at most %d are read", len(data), limit.bytes)
		return nil
	}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		found.add(0, "", "starts with a byte order mark; save the file as plain UTF-8")
		return nil
	}
	s := &scanner{data: data, limit: limit, found: found,
		dec: jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))}
	root, err := s.value("", 0)
	if err == nil {
		if _, err = s.dec.ReadToken(); errors.Is(err, io.EOF) {
			return root
		}
		if err == nil || !errors.Is(err, errStop) {
			found.add(s.skip(root.end), "", "there is more text after the end of the document")
			return nil
		}
	}
	if !errors.Is(err, errStop) {
		s.syntax(err)
	}
	return nil
}

// skip moves an offset over white space and the separators between values.
func (s *scanner) skip(offset int) int {
	for offset < len(s.data) {
		switch s.data[offset] {
		case ' ', '\t', '\r', '\n', ',', ':':
			offset++
		default:
			return offset
		}
	}
	return offset
}

func (s *scanner) syntax(err error) {
	offset := int(s.dec.InputOffset())
	message := err.Error()
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		offset = int(syntactic.ByteOffset)
		if syntactic.Err != nil {
			message = syntactic.Err.Error()
		}
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		s.found.add(len(s.data), "", "the document ends too early; a closing quote, bracket or brace is missing")
	case strings.Contains(message, "UTF-8"), strings.Contains(message, "surrogate"):
		s.found.add(offset, "", "invalid UTF-8 in a string")
	case offset < len(s.data) && (s.data[offset] == '/' || s.data[offset] == '#'):
		s.found.add(offset, "", "not JSON: comments are not allowed")
	case offset < len(s.data) && s.data[offset] == ',' && trailingComma(s.data[offset+1:]):
		s.found.add(offset, "", "not JSON: a comma after the last entry")
	case offset < len(s.data) && s.data[offset] == '\'':
		s.found.add(offset, "", "not JSON: names and strings stand in double quotes")
	default:
		s.found.add(offset, "", "not JSON: %s", clip(strings.TrimPrefix(message, "jsontext: ")))
	}
}

func trailingComma(rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return len(rest) > 0 && (rest[0] == '}' || rest[0] == ']')
}

// value reads one value at depth. It returns errStop for a cap, a decoder's error for syntax.
func (s *scanner) value(path string, depth int) (*node, error) {
	start := s.skip(int(s.dec.InputOffset()))
	token, err := s.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	n := &node{kind: token.Kind(), start: start}
	if depth > maxDepth {
		s.found.add(start, path, "nested more than %d deep", maxDepth)
		return nil, errStop
	}
	switch n.kind {
	case '"':
		n.text = token.String()
		if strings.ContainsRune(n.text, 0) {
			s.found.add(start, path, "contains the character NUL (\\u0000), which nothing here can store")
		}
	case '0':
		n.text = token.String()
		s.number(n, path)
	case '{':
		err = s.object(n, path, depth)
	case '[':
		err = s.list(n, path, depth)
	}
	n.end = int(s.dec.InputOffset())
	return n, err
}

// number refuses what no canonical form can carry: other readers would see another number.
func (s *scanner) number(n *node, path string) {
	value, err := strconv.ParseFloat(n.text, 64)
	if err != nil {
		s.found.add(n.start, path, "%s is out of the range of numbers", clip(n.text))
		return
	}
	if !strings.ContainsAny(n.text, ".eE") && (value > maxSafeInteger || value < -maxSafeInteger) {
		s.found.add(n.start, path, "%s is beyond ±%d, where integers stop being exact in JSON", clip(n.text), int64(maxSafeInteger))
	}
}

func (s *scanner) object(n *node, path string, depth int) error {
	var seen map[string]*node
	for s.dec.PeekKind() != '}' {
		keyStart := s.skip(int(s.dec.InputOffset()))
		token, err := s.dec.ReadToken()
		if err != nil {
			return err
		}
		if token.Kind() != '"' {
			return fmt.Errorf("a field name in quotes is missing")
		}
		key := token.String()
		below := joinPath(path, key)
		child, err := s.value(below, depth+1)
		if err != nil {
			return err
		}
		child.key, child.keyStart = key, keyStart
		if seen == nil {
			seen = make(map[string]*node, 8)
		}
		if first := seen[key]; first != nil {
			line, _ := (&position{data: s.data}).of(first.keyStart)
			s.found.add(keyStart, below, "given twice; the first is on line %d", line)
			child.dropped = true
		} else {
			seen[key] = child
		}
		if strings.ContainsRune(key, 0) {
			s.found.add(keyStart, below, "the name contains the character NUL (\\u0000), which nothing here can store")
		}
		if n.children = append(n.children, child); len(n.children) > s.limit.items {
			s.found.add(n.start, path, "has more than %d fields", s.limit.items)
			return errStop
		}
	}
	_, err := s.dec.ReadToken()
	return err
}

func (s *scanner) list(n *node, path string, depth int) error {
	for i := 0; s.dec.PeekKind() != ']'; i++ {
		child, err := s.value(joinPath(path, i), depth+1)
		if err != nil {
			return err
		}
		if n.children = append(n.children, child); len(n.children) > s.limit.items {
			s.found.add(n.start, path, "has more than %d entries", s.limit.items)
			return errStop
		}
	}
	_, err := s.dec.ReadToken()
	return err
}
