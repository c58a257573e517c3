// Package builder turns a [schema.Job] into a [schema.Result]: a fresh clone, artifacts, a
// published manifest, and the answer.
//
// # One build
//
// [Builder.Build] passes through the phases of [schema.Phases]:
//
//	clone     the ref resolved and fetched into a directory of this build
//	read      module.json parsed; unchanged input ends the build here
//	plan      what each artifact is made from, all names checked
//	build     each artifact made, in the build's directory
//	verify    digests taken again, the manifest composed and parsed strictly
//	publish   images, blobs, then the manifest, read back by digest
//	announce  the result sent, by [Worker]
//
// Nothing is published until everything is built, and the manifest goes last: its push is
// the commit point. A build that dies anywhere leaves a directory, which the next start
// sweeps, and perhaps blobs that nothing names.
//
// # What decides the outcome
//
// The tree at the module's path and the recipe (package recipe), and nothing else: bytes
// come from git objects and never from a checkout, archives and layers are packed by one
// rule (package archive), compilers run with an environment of ours and without a network,
// images made by an engine are normalised. So the same commit gives the same digests on
// any builder. No builder's name, time or path enters a manifest; those stand in the result.
//
// # Failures
//
// Build returns a result and never an error: a failure is an outcome with a [Reason], a
// message and a remedy. A cancelled context gives the outcome cancelled, which [Worker]
// does not send when it is the delivery that ended for good: another builder has the job.
//
// # Work
//
// [Worker] takes one job at a time from the queue and acknowledges it only after the broker
// confirmed the result. A build whose delivery is lost goes on for a while, and answers the
// next delivery of the same request (docs/design/deliveries.md).
package builder
