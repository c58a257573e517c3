// Package inventory is the extension that knows what there is: nodes with what they last
// reported, which module is assigned where, the manifest the mesh holds of each module, and
// the resources that genesis laid beneath them.
//
// An assignment is checked when it is made (capabilities, claims, settings, bindings), and
// refused by name; composition checks again, because nodes and manifests change. What an
// assignment requires and nothing provides yet is brought along as assignments of their own,
// with origin "brought"; they go when nothing needs them any more.
//
// A report is believed only from the account of the node it speaks of, and only if its
// sequence is the highest so far; anything else is recorded as refused.
//
// [Mesh] reads everything bindings are decided from in one transaction's view.
package inventory
