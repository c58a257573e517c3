// Package mesh is the map of this repository: nothing imports it. It follows one commit from
// the moment it is pushed to the moment a machine runs it, through the functions it passes, in
// order. The list below the text is Go, so that an editor jumps to each and the compiler
// notices when one is gone.
//
// # One commit
//
// Seen. The catalogue's leader asks each watched repository where its ref stands, wakes at
// once for one on its own disk, and fetches when it moved. Every module.json of the commit is
// parsed, its folder's tree hash recorded, and the wake-up for the controller written, all in
// one transaction. Nothing about it is only in memory, nor only in a message.
//
// Behind. A module is behind when the tree its manifest was built from is not the tree in the
// source, or when it would be built by another recipe now. It is computed when asked for,
// never stored.
//
// Built. "mesh build --behind" writes a job per module and enqueues its publication; a
// reconciler puts it on the one queue every builder reads. A builder clones afresh, reads the
// module, makes every artifact, verifies, and only then publishes: blobs, images, and the
// manifest last. Its result is a message to the exchange; the controller records the first
// one for an id, once, and the module's current manifest with it.
//
// Declared. For each node the declaration that follows from its assignments is composed: pure,
// without input or output, so that a plan and a push are the same computation. Secrets stay
// sealed to the node that will open them.
//
// Pushed. "mesh push" records the declaration, with the next generation and a signature, if it
// is still the one whose plan was shown. A reconciler gives it to the broker until the node
// says that it has it.
//
// Applied. The host checks signature, node, epoch and generation, keeps the declaration on
// disk, plans, fetches what it will need, switches resource by resource in order, watches each
// prove itself, and puts back what does not. Its report says what is, not what was sent.
package mesh

import (
	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/delivery"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// The functions one commit passes through, in order.
var _ = []any{
	// Seen.
	(*catalogue.Service).Run, // one leader follows every repository
	(*source.Client).LsRemote,
	(*source.Client).Fetch,
	schema.ParseModule,

	// Behind.
	(*builds.Builds).Statuses,
	catalogue.Behind,

	// Built.
	api.BuildRequest.Path,    // what "mesh build" calls
	(*builder.Worker).Run,    // takes the job from the queue
	(*builder.Builder).Build, // clone, read, plan, build, verify, publish
	clone.Get,
	(*registry.Client).PublishManifest,
	(*bus.Conn).Publish,     // the result, to the exchange
	(*builds.Builds).Record, // once

	// Declared.
	delivery.Compose, // a node's facts, read in one transaction
	compose.Compose,  // what follows from them

	// Pushed.
	api.DeliveryPush.Path, // what "mesh push" calls
	delivery.Sign,
	delivery.Record,

	// Applied.
	(*host.Host).Accept,
	host.Verifier.Verify,
	(*host.Host).Converge,
	host.Plan,
	(*host.Host).Report,
}
