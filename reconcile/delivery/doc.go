// Package delivery is the extension that turns assignments into what each node is told.
//
// The reconciler node.compose composes a node in one transaction: it brings along what is
// required, makes the secrets that are missing, composes, merges the other extensions'
// sections, and stores declaration and hash. Composing moves the hash and nothing else. A
// plan compares it with what the node was last told. A push is of a plan that was shown: it
// allots the next generation, signs, and stores the declaration; a hash that no longer holds
// is a conflict.
//
// The reconciler node.deliver hands the newest declaration to the broker until the node has
// reported that it saw it. A message that was lost, or a queue that was emptied, is healed by
// the sweep that looks for what nobody acknowledged.
//
// Pushed, seen and applied are three facts: the first is recorded here, the others are the
// host's report. [State] is the one word for them, and it never says more than is known.
package delivery
