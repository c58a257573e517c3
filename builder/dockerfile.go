package builder

import (
	"bufio"
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// dockerfile is what this package must know of one: the images from outside it is built on.
type dockerfile struct {
	lines []string // logical lines as they stand, continuation included
	stage map[string]bool
	begin []int // logical lines that begin a stage
	froms []external
}

// external is one mention of an image from outside: in logical line `line`, `token` stands for
// `reference`.
type external struct {
	line      int
	token     string
	reference string
}

var (
	fromLine  = regexp.MustCompile(`(?is)^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?\s*$`)
	argLine   = regexp.MustCompile(`(?is)^\s*ARG\s+(\w+)(?:=(.*))?\s*$`)
	copyFrom  = regexp.MustCompile(`(?is)^\s*COPY\s+(?:--\S+\s+)*?--from=(\S+)`)
	variable  = regexp.MustCompile(`\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})`)
	directive = regexp.MustCompile("(?i)^#\\s*escape\\s*=\\s*([\\\\`])")
)

// parseDockerfile finds the images a Dockerfile names. Args are the build's own values.
func parseDockerfile(data []byte, args map[string]string) (*dockerfile, error) {
	d := &dockerfile{lines: logicalLines(data), stage: map[string]bool{}}
	values := map[string]string{}
	stages := 0
	for i, line := range d.lines {
		flat := flatten(line)
		if m := argLine.FindStringSubmatch(flat); m != nil && stages == 0 {
			value := strings.Trim(strings.TrimSpace(m[2]), `"'`)
			if given, ok := args[m[1]]; ok {
				value = given
			}
			values[m[1]] = value
			continue
		}
		if m := fromLine.FindStringSubmatch(flat); m != nil {
			reference := expand(m[1], values)
			if reference == "" || strings.Contains(reference, "$") {
				return nil, failed(ReasonDockerfile, "give the argument a default before FROM, or a value in args", "FROM %s names no image", m[1])
			}
			if reference != "scratch" && !d.stage[strings.ToLower(reference)] {
				d.froms = append(d.froms, external{i, m[1], reference})
			}
			d.begin = append(d.begin, i)
			d.stage[strconv.Itoa(stages)] = true
			d.stage[strings.ToLower(m[2])] = true
			stages++
			continue
		}
		if m := copyFrom.FindStringSubmatch(flat); m != nil && !d.stage[strings.ToLower(m[1])] {
			d.froms = append(d.froms, external{i, m[1], m[1]})
		}
	}
	if stages == 0 {
		return nil, failed(ReasonDockerfile, "", "Dockerfile has no FROM")
	}
	return d, nil
}

// references lists the images from outside, each once.
func (d *dockerfile) references() []string {
	var all []string
	for _, e := range d.froms {
		if !slices.Contains(all, e.reference) {
			all = append(all, e.reference)
		}
	}
	return all
}

// rewrite gives the Dockerfile with every image from outside under the name it has in the
// engine, and with a label on every stage: what a build that fails leaves in the engine is
// found by it.
func (d *dockerfile) rewrite(names map[string]string, label string) []byte {
	lines := slices.Clone(d.lines)
	for _, e := range d.froms {
		lines[e.line] = strings.Replace(lines[e.line], e.token, names[e.reference], 1)
	}
	for _, i := range d.begin {
		lines[i] += "LABEL " + label + "\n"
	}
	return []byte(strings.Join(lines, ""))
}

// logicalLines splits at newlines that are not escaped; the pieces join to the input.
func logicalLines(data []byte) []string {
	escape := `\`
	var lines []string
	var open strings.Builder
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, len(data)+1)
	head := true
	for s.Scan() {
		text := s.Text()
		trimmed := strings.TrimSpace(text)
		if m := directive.FindStringSubmatch(trimmed); m != nil && head {
			escape = m[1]
		}
		head = head && strings.HasPrefix(trimmed, "#")
		open.WriteString(text + "\n")
		comment := strings.HasPrefix(trimmed, "#")
		if strings.HasSuffix(trimmed, escape) && !comment || comment && open.Len() > len(text)+1 {
			continue
		}
		lines = append(lines, open.String())
		open.Reset()
	}
	if open.Len() > 0 {
		lines = append(lines, open.String())
	}
	return lines
}

// flatten joins a logical line into one, comments inside it left out.
func flatten(line string) string {
	var parts []string
	for part := range strings.Lines(line) {
		part = strings.TrimSpace(part)
		if strings.HasPrefix(part, "#") {
			continue
		}
		parts = append(parts, strings.TrimRight(part, "\\`"))
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}

func expand(text string, values map[string]string) string {
	return variable.ReplaceAllStringFunc(text, func(m string) string {
		g := variable.FindStringSubmatch(m)
		if v := values[g[1]+g[2]]; v != "" {
			return v
		}
		return g[3]
	})
}
