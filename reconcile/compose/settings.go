package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// SettingValue checks a value given as text against its declaration and returns the text
// that stands in for ${name}. The error says what was expected.
func SettingValue(name string, setting schema.Setting, raw string) (string, error) {
	refuse := func(expected string) error {
		return fmt.Errorf("setting %s: %q is not %s", name, raw, expected)
	}
	var number float64
	value := raw
	switch setting.Type {
	case "integer":
		parsed, err := strconv.ParseInt(raw, 10, 64)
		if err != nil {
			return "", refuse("an integer")
		}
		number, value = float64(parsed), strconv.FormatInt(parsed, 10)
	case "number":
		parsed, err := strconv.ParseFloat(raw, 64)
		if err != nil {
			return "", refuse("a number")
		}
		number = parsed
	case "boolean":
		parsed, err := strconv.ParseBool(raw)
		if err != nil {
			return "", refuse("true or false")
		}
		value = strconv.FormatBool(parsed)
	}
	if setting.Type == "integer" || setting.Type == "number" {
		if setting.Minimum != nil && number < *setting.Minimum {
			return "", refuse(fmt.Sprintf("at least %v", *setting.Minimum))
		}
		if setting.Maximum != nil && number > *setting.Maximum {
			return "", refuse(fmt.Sprintf("at most %v", *setting.Maximum))
		}
	}
	if len(setting.Enum) > 0 && !slices.Contains(setting.Enum, value) {
		return "", refuse("one of " + strings.Join(setting.Enum, ", "))
	}
	return value, nil
}

// CheckSettings checks every value an assignment gives against a module's declarations.
func CheckSettings(declared map[string]schema.Setting, given map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		raw := given[name]
		setting, ok := declared[name]
		if !ok {
			return fmt.Errorf("setting %s: the module has no such setting", name)
		}
		if _, err := SettingValue(name, setting, raw); err != nil {
			return err
		}
	}
	return nil
}

// settings gives the value of each setting that has one, and the first that is not valid.
func settings(declared map[string]schema.Setting, given map[string]string) (map[string]string, error) {
	values := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		setting := declared[name]
		raw, ok := given[name]
		if !ok {
			if len(setting.Default) == 0 {
				continue
			}
			raw = strings.TrimSpace(string(setting.Default))
			var text string
			if json.Unmarshal(setting.Default, &text) == nil {
				raw = text
			}
		}
		value, err := SettingValue(name, setting, raw)
		if err != nil {
			return nil, err
		}
		values[name] = value
	}
	return values, nil
}
