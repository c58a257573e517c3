package schema

import (
	"bytes"
	"encoding/json"
)

// The short forms of module.json: a bare string where an object with one telling field
// would do. Encoding always writes the object.

// UnmarshalJSON reads a requirement, or its name alone.
func (r *Requirement) UnmarshalJSON(data []byte) error {
	type plain Requirement
	return unmarshalShort(data, &r.Name, (*plain)(r))
}

// UnmarshalJSON reads a claim, or its role alone.
func (c *Claim) UnmarshalJSON(data []byte) error {
	type plain Claim
	return unmarshalShort(data, &c.Role, (*plain)(c))
}

// UnmarshalJSON reads an own secret, or its path alone.
func (s *OwnSecret) UnmarshalJSON(data []byte) error {
	type plain OwnSecret
	return unmarshalShort(data, &s.Path, (*plain)(s))
}

func unmarshalShort(data []byte, short *string, long any) error {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte(`"`)) {
		return json.Unmarshal(data, short)
	}
	return json.Unmarshal(data, long)
}
