package extension

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mesh-control/mesh/reconcile/api"
)

// decode reads one JSON value strictly: an unknown field, a field given twice and anything
// after the value are refused. An empty body stands for no fields; null, which a decoder takes
// for "leave it as it is", is not an object and is refused.
func decode(body []byte, into any) error {
	switch text := bytes.TrimSpace(body); {
	case len(text) == 0:
		body = []byte("{}")
	case string(text) == "null":
		return &api.Error{Code: api.CodeInvalidInput, Message: "body: null is not an object", Remedy: "send {} for no fields"}
	}
	err := json.Unmarshal(body, into, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	where := "body"
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &semantic) && semantic.JSONPointer != "":
		where = string(semantic.JSONPointer)
	case errors.As(err, &syntactic) && syntactic.JSONPointer != "":
		where = string(syntactic.JSONPointer)
	}
	return &api.Error{
		Code:    api.CodeInvalidInput,
		Message: fmt.Sprintf("%s: %s", where, reason(err)),
		Remedy:  "send the fields the method's schema names; see /api/openapi.json",
	}
}

func reason(err error) string {
	if errors.Is(err, json.ErrUnknownName) {
		return "unknown field"
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return "field given twice"
	}
	return err.Error()
}

// encode writes an answer: absent lists as [], keys of maps in order.
func encode(v any) ([]byte, error) {
	return json.Marshal(v, json.Deterministic(true))
}
