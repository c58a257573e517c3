package toolchain

import (
	"fmt"
	"strings"
)

// one takes the version from commands that print nothing else.
func one(lines []string) (string, error) {
	if len(lines) != 1 || lines[0] == "" {
		return "", fmt.Errorf("toolchain says %q of its version", lines)
	}
	return lines[0], nil
}

// labelled joins what the commands printed, one line each, to "node v20.1.0 npm 10.2.0".
func labelled(lines []string, names ...string) (string, error) {
	if len(lines) != len(names) {
		return "", fmt.Errorf("toolchain says %q of its version", lines)
	}
	var parts []string
	for i, line := range lines {
		// rustc says its own name and, in parentheses, its commit.
		line = strings.TrimPrefix(strings.TrimSpace(line), names[i]+" ")
		line, _, _ = strings.Cut(line, " ")
		parts = append(parts, names[i]+" "+line)
	}
	return strings.Join(parts, " "), nil
}
