package schema

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"cuelang.org/go/cue"
	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"
)

func TestAcceptedDocumentsEncodeAndAreAcceptedAgain(t *testing.T) {
	t.Parallel()
	for doc, texts := range accepted(t) {
		for file, data := range texts {
			again(t, doc, file, data)
		}
	}
}

// again parses what is acceptable, encodes it, and parses that: the same value.
func again(t *testing.T, doc, file string, data []byte) {
	t.Helper()
	value, err := parseAs(doc, file, data)
	if err != nil {
		t.Errorf("%s %s: %v", doc, file, err)
		return
	}
	first, err := Canonical(value)
	if err != nil {
		t.Errorf("%s %s: %v", doc, file, err)
		return
	}
	value, err = parseAs(doc, "canonical", first)
	if err != nil {
		t.Errorf("%s %s: its canonical form %s is refused: %v", doc, file, first, err)
		return
	}
	second, err := Canonical(value)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("%s %s: canonical form\n%s\nbecame\n%s (%v)", doc, file, first, second, err)
	}
}

func TestShortFormsEncodeAsObjects(t *testing.T) {
	t.Parallel()
	m, err := ParseModule("module.json", []byte(`{"name": "a", "requires": ["b"], "claims": ["c"], "own-secrets": {"d": "/d"}}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Canonical(m)
	if want := `{"claims":[{"role":"c"}],"name":"a","own-secrets":{"d":{"path":"/d"}},"requires":[{"name":"b"}]}`; err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// The tables by which fields are told apart and the definitions by which values are
// checked must speak of the same fields.
func TestFieldTablesAreThoseOfTheDefinitions(t *testing.T) {
	t.Parallel()
	e := newEngine()
	fieldsOf := func(name string) []string {
		var names []string
		fields, err := e.definition(name).Fields(cue.Optional(true))
		if err != nil {
			t.Fatal(err)
		}
		for fields.Next() {
			names = append(names, fields.Selector().Unquoted())
		}
		slices.Sort(names)
		return names
	}
	same := func(name string, fields []string) {
		t.Helper()
		slices.Sort(fields)
		if got := fieldsOf(name); !slices.Equal(got, fields) {
			t.Errorf("#%s has %v in CUE and %v in Go", name, got, fields)
		}
	}
	for _, s := range shapes() {
		var walk func(s *shape, seen map[*shape]bool)
		walk = func(s *shape, seen map[*shape]bool) {
			if s == nil || seen[s] {
				return
			}
			seen[s] = true
			inline := []string{"Claim", "Resource", "Artifact", "DeviceSection", "SiteSection"}
			if s.kind == shapeObject && !slices.Contains(inline, s.goType.Name()) {
				same(s.goType.Name(), slices.Clone(s.names))
			}
			walk(s.elem, seen)
			for _, field := range s.fields {
				walk(field, seen)
			}
		}
		walk(s, make(map[*shape]bool))
	}
	for _, kind := range artifactKinds {
		n := &node{kind: '{', children: []*node{{kind: '"', key: "kind", text: kind}}}
		same(definitionOf(n, shapes()[documentModule].fields["artifacts"].elem, documentModule), append([]string{"kind"}, artifactFields[kind]...))
	}
	for _, doc := range []document{documentModule, documentManifest, documentDeclaration} {
		for _, kind := range resourceTypes {
			n := &node{kind: '{', children: []*node{{kind: '"', key: "type", text: kind}}}
			same(definitionOf(n, shapes()[doc].fields["resources"].elem, doc), slices.Concat([]string{"id", "type", "after"}, carried(doc, kind), resourceFields[kind]))
		}
	}
}

func TestCanonicalIsRFC8785(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]string{
		`{"b":1,"a":[3,2.0,1e2,-0]}`:                              `{"a":[3,2,100,0],"b":1}`,
		`{"€":"Euro","\r":"CR","ö":1,"😀":2,"1":"One","\ufb33":3}`: "{\"\\r\":\"CR\",\"1\":\"One\",\"ö\":1,\"€\":\"Euro\",\"😀\":2,\"\ufb33\":3}",
		`"<script>&\u2028\u000f\u0041"`:                           "\"<script>&\u2028\\u000fA\"",
		`[333333333.33333329,1E30,4.50,2e-3,1e-27]`:               `[333333333.3333333,1e+30,4.5,0.002,1e-27]`,
	} {
		got, err := Canonical(json.RawMessage(v))
		if err != nil || string(got) != want {
			t.Errorf("Canonical(%s) is %s, %v; want %s", v, got, err, want)
		}
	}
}

// Another implementation of RFC 8785 gives the same bytes.
func TestCanonicalAgreesWithAnotherImplementation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.MapOf(rapid.String(), rapid.OneOf(
			rapid.Custom(func(t *rapid.T) any { return rapid.Float64().Draw(t, "number") }),
			rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "string") }),
			rapid.Custom(func(t *rapid.T) any { return rapid.SliceOf(rapid.Bool()).Draw(t, "list") }),
		)).Draw(t, "value")
		got, err := Canonical(value)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		want, err := jcs.Transform(bytes.ReplaceAll(text, []byte(":null"), []byte(":[]")))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) && !bytes.Contains(text, []byte(":null")) {
			t.Fatalf("%s is %s here and %s there", text, got, want)
		}
	})
}

func TestHashLeavesOutWhatAPushDecides(t *testing.T) {
	t.Parallel()
	d := Declaration{Schema: Version, Node: "n1"}
	first, err := HashDeclaration(d)
	if err != nil {
		t.Fatal(err)
	}
	pushed := d
	pushed.Epoch, pushed.Generation, pushed.Hash, pushed.Signature = 2, 42, first, []byte{1}
	pushed.Modules, pushed.Resources = map[string]string{}, []Resource{}
	if again, err := HashDeclaration(pushed); err != nil || again != first {
		t.Errorf("hash of the pushed declaration is %s, %v; want %s", again, err, first)
	}
	pushed.Node = "n2"
	if other, err := HashDeclaration(pushed); err != nil || other == first {
		t.Errorf("hash does not depend on the node: %s, %v", other, err)
	}
	signed, err := SigningBytes(pushed)
	if err != nil || strings.Contains(string(signed), "signature") || !strings.Contains(string(signed), `"generation":42`) {
		t.Errorf("signing bytes %s, %v", signed, err)
	}
}

func TestParsersServeManyAtOnce(t *testing.T) {
	t.Parallel()
	all := accepted(t)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for doc, texts := range all {
				for file, data := range texts {
					if _, err := parseAs(doc, file, data); err != nil {
						t.Error(err)
					}
					if _, err := parseAs(doc, file, bytes.Replace(data, []byte(`"schema": 1`), []byte(`"schema": 2`), 1)); doc == "job" && err == nil {
						t.Error("schema 2 accepted")
					}
				}
			}
		})
	}
	group.Wait()
}

func TestExpand(t *testing.T) {
	t.Parallel()
	value := func(r Reference) (string, error) { return "<" + r.String()[2:], nil }
	for s, want := range map[string]string{
		"plain $ {}": "plain $ {}", "a${x}b${node.name}": "a<x}b<node.name}", "$${HOME}/${x}": "${HOME}/<x}",
		"${provision.db.port}": "<provision.db.port}", "${secret.k.path}": "<secret.k.path}", "$$${x}": "$${x}",
	} {
		if got, err := Expand(s, value); err != nil || got != want {
			t.Errorf("Expand(%q) is %q, %v; want %q", s, got, err, want)
		}
	}
	for _, s := range []string{"${", "${}", "${node}.${", "${node.ip}", "${provision.db}", "${secret.k.value}", "${a.b}"} {
		if got, err := Expand(s, value); err == nil {
			t.Errorf("Expand(%q) is %q, want an error", s, got)
		}
	}
}

// The quick check for conflicts finds exactly the pairs a check of all pairs finds.
func TestPathConflictsAreThoseOfAllPairs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.StringMatching(`(/[ab.-]){1,4}`)
		kind := rapid.SampledFrom([]string{TypeDirectory, TypeFile, TypeArchive, PathSecret, PathGrants})
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) OwnedPath {
			return OwnedPath{Path: path.Draw(t, "path"), Kind: kind.Draw(t, "kind")}
		}), 0, 8).Draw(t, "paths")
		told := make(map[int]bool)
		for _, c := range PathConflicts(list) {
			told[c.First], told[c.Second] = true, true
		}
		for i, outer := range list {
			for j, inner := range list {
				if i != j && within(inner.Path, outer.Path) && conflict(outer, inner) != "" && !told[i] && !told[j] {
					t.Fatalf("%v and %v are not told of", outer, inner)
				}
			}
		}
	})
}
