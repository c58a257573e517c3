package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Check says whether a value, as JSON, is one this setting takes. It serves the default in
// module.json and the values an assignment gives.
func (s Setting) Check(value json.RawMessage) error {
	text := strings.TrimSpace(string(value))
	switch s.Type {
	case "string":
		var got string
		if json.Unmarshal(value, &got) != nil || text == "null" {
			return fmt.Errorf("%s is not a string", clip(text))
		}
		if len(s.Enum) > 0 && !slices.Contains(s.Enum, got) {
			return fmt.Errorf("%s is not one of %s", quote(got), strings.Join(s.Enum, ", "))
		}
	case "boolean":
		if text != "true" && text != "false" {
			return fmt.Errorf("%s is neither true nor false", clip(text))
		}
	case "integer", "number":
		var number json.Number
		if err := json.Unmarshal(value, &number); err != nil || strings.HasPrefix(text, `"`) || text == "null" {
			return fmt.Errorf("%s is not a number", clip(text))
		}
		if s.Type == "integer" && strings.ContainsAny(text, ".eE") {
			return fmt.Errorf("%s is not an integer", clip(text))
		}
		got, err := strconv.ParseFloat(text, 64)
		switch {
		case err != nil:
			return fmt.Errorf("%s is out of the range of numbers", clip(text))
		case s.Minimum != nil && got < *s.Minimum:
			return fmt.Errorf("%s is below the minimum, %v", text, *s.Minimum)
		case s.Maximum != nil && got > *s.Maximum:
			return fmt.Errorf("%s is above the maximum, %v", text, *s.Maximum)
		}
	default:
		return fmt.Errorf("%s is no type of setting", quote(s.Type))
	}
	return nil
}
