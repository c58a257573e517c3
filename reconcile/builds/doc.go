// Package builds is the extension that asks for builds and keeps what came of them.
//
// A request is a row. The reconciler build.publish puts its job on the queue of the builders
// and the row stays open until there is a result; build.sweep puts open rows on the queue
// again when the queue has lost them, because the queue is not the record. A result is
// recorded once per correlation id, whoever asked and whether or not they still wait: from
// the exchange, from a builder's own account only, and only for a build that was asked for.
// A job that killed its builders comes back dead-lettered and is recorded as failed.
//
// Recording a result that made a new manifest makes it the one the mesh holds, and the nodes
// it is assigned to are composed anew. Nothing is delivered by that.
//
// Progress is heard on this process's own reply queue and kept in a ring in memory; what has
// to last is in the result.
package builds
