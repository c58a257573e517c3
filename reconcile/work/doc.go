// Package work is the queue that wakes reconcilers, and the workers that run them.
//
// A key that needs attention is one row of mesh.work, however often it is enqueued: a
// repeated enqueue raises the row's generation. A run that ends removes the row only at the
// generation it read, so a key dirtied while its reconciler runs is run again. Nothing is
// claimed by writing: keys belong to one of 256 shards, a shard belongs to the worker that
// holds its lease, and the worker keeps the keys it is running in memory. A worker that dies
// leaves its keys due for whoever takes the lease next.
//
// A lease has an epoch that only grows. Every transaction a reconciler opens begins by
// locking the epoch's row FOR SHARE ([Leases.Fence]); taking the lease over writes that row,
// so it waits until such a transaction has ended, and a holder whose epoch has passed cannot
// commit, however long it was paused. Whether a lease has expired is decided by the
// database's clock (mesh_now) alone.
//
// Shards are spread over the live workers of a role by rendezvous hashing: each worker ranks
// all live workers for each shard and takes those it comes first for, so that a death moves
// the dead worker's shards only. A reconciler that is not sharded runs under one lease,
// singleton:<name>.
//
// Workers are woken by their own process, by NOTIFY, and by polling beneath both: a lost
// wake-up costs the poll interval, and a lost row heals when the shard's keys are resynced.
package work
