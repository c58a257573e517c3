// Package secrets makes and keeps what only one node can open.
//
// A generated own secret is 32 random bytes, made once per node and kept; a given one comes
// from outside and is never made here. A provision's credential belongs to one consumer on
// one node at one provider, and is sealed twice: as a [schema.Credential] to the consumer's
// node, and as a [schema.Grant] to the provider's. The plaintext lives in memory between two
// calls of the sealing function and is stored nowhere.
//
// Sealing happens in the transaction that holds the row of the node whose key it uses, so a
// node that rejoins meanwhile waits, and finds what was sealed to its old key remade, not
// sent. What is generated is remade when the key, or what it was made from, has changed; what
// was given is left as it is, and composition refuses it by name until it is given again.
//
// [Ensure] brings a node's rows into agreement with what its modules declare and are bound
// to; it is called by whoever composes the node, in the same transaction.
package secrets
