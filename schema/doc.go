// Package schema holds the documents that cross borders, as values: module.json
// ([Module]), the built [Manifest], the [Declaration] of a node, the build [Job] with its
// [Result], and a host's [Report]. It imports nothing of ours, and every parser here is
// strict: an unknown field, a duplicate key, a case-folded key, trailing data, invalid
// UTF-8 and oversize are refused with file:line:column.
//
// The Go types give the shape; the CUE definitions embedded beside them give the values
// that are allowed; `mesh schema` publishes both as JSON Schema.
//
// Parsing is a pipeline, and an error is told by the first step that sees it:
//
//  1. scan: tokens. Size, depth and list caps, duplicate keys, trailing text, UTF-8,
//     numbers no canonical form can carry; every value remembers where it stood.
//  2. checker.shape: names. Renamed, unknown and case-folded fields, fields of another
//     type of resource or kind of artifact, each with the nearest name there is.
//  3. checker.values: values, one CUE definition per object, told in the words of the
//     definition's @expect at the line of the text.
//  4. Decoding into the Go type, which by now cannot fail.
//  5. Meaning: what refers to what, and what cannot stand together (meaning*.go).
//
// One error per path, at most [MaxErrors], in the order of the text. Every parser is safe
// for concurrent use; the definitions are compiled at the first parse.
package schema

// Version is the number every document carries in its field "schema".
const Version = 1
