// Package source is how the catalogue speaks git: it asks a remote where a ref stands,
// fetches that one commit shallowly, and finds every module.json in its tree.
//
// Nothing is ever checked out. A fetched pack is parsed in memory; one larger than
// [Config.MemoryBytes] goes to a directory of its own that [Snapshot.Close] removes, and one
// larger than [Config.MaxBytes] is refused as [TooLarge]. A repository on this machine
// (file://, or an absolute path) is read where it lies, through its object files: no git
// program is started and nothing is copied. The machine's git configuration, hooks, filters,
// credential helpers and environment have no part in it.
//
// Every failure is an [*Error] whose [Reason] says what a person has to look at. What a
// remote says may stand in its message, so messages are cut short, made printable and free
// of the credentials that were sent.
//
// Both operations are counted (mesh_git_ls_remote_total, mesh_git_fetch_total): a commit costs
// one of each, however many modules a repository has.
package source
