// Package compose decides what a node should be: assignments, manifests, settings, sealed
// secrets and the foundation in, a [schema.Declaration] or the reasons why not out. It does
// no I/O, reads no clock and holds no state, so the same inputs, in any order, give the same
// hash.
//
// [Resolve] answers which modules a node has (those assigned and those brought along by what
// they require) and which provider each requirement is bound to. [Compose] turns that into
// resources. A module that cannot go out is [api.Blocked] with a constant reason; what the
// node was last told of it stays as it was, and the node's other modules go out. [Diff]
// compares two declarations and shows no secret.
package compose
