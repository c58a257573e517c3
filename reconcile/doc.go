// Package reconcile assembles the controller: what each node should be, was told, and is.
//
// [New] builds the extensions on one host: inventory (what there is), secrets (what only one
// node can open), builds (what was asked of builders and what came of it), delivery (what
// each node is told), and what this package adds, the mesh at a glance ([api.SystemStatus],
// [api.ModuleBehind], [api.ModuleWhy]). [Controller.Serve] migrates, starts them and answers
// HTTPS. [Adopt] is how a mesh begins: genesis hands over, in one transaction, the node it
// stands on, what it built, and the operator, and gets the first declaration back.
//
// PostgreSQL is the truth. The controller starts and answers while the broker is away; what
// needs the broker waits on the work queue.
package reconcile
