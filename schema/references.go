package schema

import (
	"fmt"
	"strings"
)

// RefKind is what a reference asks for.
type RefKind string

// The kinds of reference: ${name} is a setting, ${node.name} and ${node.address} the node,
// ${provision.<name>.host} and .port a required provision, ${secret.<name>.path} where a
// secret lands.
const (
	RefSetting   RefKind = "setting"
	RefNode      RefKind = "node"
	RefProvision RefKind = "provision"
	RefSecret    RefKind = "secret"
)

// Reference is one ${…} in a string value of a resource. Name is empty for the node, Field
// for a setting.
type Reference struct {
	Kind  RefKind
	Name  string
	Field string
}

// String is the reference as written.
func (r Reference) String() string {
	switch r.Kind {
	case RefSetting:
		return "${" + r.Name + "}"
	case RefNode:
		return "${node." + r.Field + "}"
	}
	return "${" + string(r.Kind) + "." + r.Name + "." + r.Field + "}"
}

// Expand replaces every ${…} of a string by what value gives for it, and "$${" by a
// literal "${". What a value holds is not expanded again.
func Expand(s string, value func(Reference) (string, error)) (string, error) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	var out strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			out.WriteString(s)
			return out.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			out.WriteString(s[:i-1])
			out.WriteString("${")
			s = s[i+2:]
			continue
		}
		inside, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed {
			return "", fmt.Errorf(`"${" without a closing "}"; write "$${" for a literal "${"`)
		}
		reference, err := parseReference(inside)
		if err != nil {
			return "", err
		}
		text, err := value(reference)
		if err != nil {
			return "", err
		}
		out.WriteString(s[:i])
		out.WriteString(text)
		s = rest
	}
}

// References lists the references of a string in order.
func References(s string) ([]Reference, error) {
	var list []Reference
	_, err := Expand(s, func(r Reference) (string, error) {
		list = append(list, r)
		return "", nil
	})
	return list, err
}

func parseReference(inside string) (Reference, error) {
	parts := strings.Split(inside, ".")
	switch {
	case len(parts) == 1 && inside != "":
		return Reference{Kind: RefSetting, Name: inside}, nil
	case len(parts) == 2 && parts[0] == "node" && (parts[1] == "name" || parts[1] == "address"):
		return Reference{Kind: RefNode, Field: parts[1]}, nil
	case len(parts) == 3 && parts[0] == "provision" && (parts[2] == "host" || parts[2] == "port"),
		len(parts) == 3 && parts[0] == "secret" && parts[2] == "path":
		return Reference{Kind: RefKind(parts[0]), Name: parts[1], Field: parts[2]}, nil
	}
	return Reference{}, fmt.Errorf("%s refers to nothing known: there are ${<setting>}, ${node.name}, ${node.address}, "+
		"${provision.<name>.host}, ${provision.<name>.port} and ${secret.<name>.path}; write \"$${\" for a literal \"${\"",
		quote("${"+inside+"}"))
}
