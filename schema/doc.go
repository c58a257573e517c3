// Package schema holds the documents that cross borders, as values: module.json
// ([Module]), the built [Manifest], the [Declaration] of a node, the build [Job] with its
// [Result], and a host's [Report]. It imports nothing of ours, and every parser here is
// strict: an unknown field, a duplicate key, a case-folded key, trailing data, invalid
// UTF-8 and oversize are refused with file:line:column.
//
// The Go types give the shape; the CUE definitions embedded beside them give the values
// that are allowed; `mesh schema` publishes both as JSON Schema.
package schema

// Version is the number every document carries in its field "schema".
const Version = 1
