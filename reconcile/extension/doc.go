// Package extension hosts what the controller is made of.
//
// An [Extension] brings migrations, methods, reconcilers, sections of nodes' declarations,
// status handlers and checks of itself. [New] registers extensions: it checks everything that
// can be checked without a database and reports all problems at once. [Host.Initialize]
// migrates (core first, then the extensions in their order), anchors the clock and starts the
// extensions in order; a failing Start stops those already started, in reverse. [Host.Stop]
// ends the workers first and then the extensions in reverse. Registration order is also the
// order in which sections are merged ([Merge]).
//
// A method is an [api.Call] with its handler ([Handle]). Its envelope decodes strictly,
// authenticates, authorises against the resource the input names, validates, and runs the
// handler in one transaction: its rows, events and work items commit together or not at all.
// What a handler returns as an [api.Error] reaches the caller as it is; anything else is
// logged and answered as INTERNAL.
//
// Events go through the outbox (mesh.outbox) in the transaction of the change and are read
// in the order of their transactions, below the oldest one still running, so that nothing
// committed is missed and nothing rolled back is seen ([ReadOutbox]).
package extension
