package api

import (
	"context"
	"encoding/json"
	"fmt"
)

// Caller brings a method's input to a controller and its answer back.
type Caller interface {
	Post(ctx context.Context, path string, body []byte) ([]byte, error)
}

// Do calls the method. An error is an [*Error] where the controller gave one.
func (call Call[In, Out]) Do(ctx context.Context, via Caller, in In) (Out, error) {
	var out Out
	body, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("encode %s.%s: %w", call.Group, call.Method, err)
	}
	answer, err := via.Post(ctx, call.Path(), body)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, fmt.Errorf("read the answer of %s.%s: %w", call.Group, call.Method, err)
	}
	return out, nil
}

// Path is the method's route.
func (call Call[In, Out]) Path() string { return "/api/mesh/" + call.Group + "/" + call.Method }
