package extension

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// openAPI describes every method as OpenAPI 3.1, from the Go types of inputs and outputs.
func (h *Host) openAPI() ([]byte, error) {
	schemas := &schemas{known: map[string]any{}}
	paths := map[string]any{}
	for _, path := range h.order {
		m := h.methods[path]
		paths[h.config.BasePath+"/"+path] = map[string]any{"post": map[string]any{
			"operationId":   strings.ReplaceAll(path, "/", "."),
			"tags":          []string{m.Group},
			"x-mesh-action": m.Action,
			"x-mesh-kind":   m.Kind,
			"x-mesh-owner":  m.owner,
			"requestBody":   map[string]any{"content": content("application/json", schemas.of(m.in))},
			"responses": map[string]any{
				"200":     map[string]any{"description": "done", "content": content("application/json", schemas.of(m.out))},
				"default": map[string]any{"description": "refused or failed", "content": content("application/problem+json", schemas.of(reflect.TypeFor[problem]()))},
			},
		}}
	}
	return encode(map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]any{"title": "mesh controller", "version": h.config.Version},
		"paths":   paths,
		"components": map[string]any{
			"schemas":         schemas.known,
			"securitySchemes": map[string]any{"operator": map[string]any{"type": "http", "scheme": "bearer"}},
		},
		"security": []any{map[string]any{"operator": []string{}}},
	})
}

func content(mediaType string, schema any) map[string]any {
	return map[string]any{mediaType: map[string]any{"schema": schema}}
}

// schemas collects the named types met, so that each is described once.
type schemas struct {
	known map[string]any
}

func (s *schemas) of(t reflect.Type) any {
	switch t {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[any]():
		return map[string]any{}
	case reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Struct:
		return s.named(t)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer"}
	}
	return map[string]any{}
}

func (s *schemas) named(t reflect.Type) any {
	if t.Name() == "" {
		return s.object(t)
	}
	name := t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:] + "." + t.Name()
	if _, ok := s.known[name]; !ok {
		s.known[name] = nil // stops the recursion of types that hold themselves
		s.known[name] = s.object(t)
	}
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

func (s *schemas) object(t reflect.Type) any {
	properties := map[string]any{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		properties[name] = s.of(f.Type)
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}
