// Package host is one node's reconciler: it makes a machine be what the signed declaration
// for it says, and says back what is.
//
// # A pass
//
// Verify, plan, stage, switch, observe, settle.
//
//	verify   signature, node, epoch, generation, strict decoding ([Verifier])
//	plan     declared against observed, purely ([Plan]); a plan is a value that is printed and run
//	stage    pull by digest, fetch and unpack beside, open sealed values in memory
//	switch   resource by resource in dependency order; a file by rename, an archive by one
//	         rename of a link, a container by keeping its predecessor aside
//	observe  each container and service for its window: its health check, or samples without a restart
//	settle   commit, or put back the previous version of what failed, and keep everything else
//
// A pass that is broken off anywhere, by kill -9 or a power cut, is followed by one that
// starts from what is really there and converges. [Points] lists the places in between.
//
// # What is true
//
// Labels on containers, records of services and the manifest of owned paths say what this
// host made; the state file is a cache. With the cache truncated or gone nothing is stopped:
// what is there is looked at again. Things the host did not make are never touched: they are
// refused by name. Identity keys are made once and never overwritten.
//
// The engine restarts containers and services run in sessions of their own, so killing or
// upgrading the host stops neither. A service's process waits, as a copy of the host's own
// program, until it is recorded: none runs that the next life of the host does not know.
//
// # Beneath one directory
//
// With a root ([NewLayout]) every declared path of the machine lies beneath it: directories, files,
// archives, the programs of services, their arguments that name such a path, and the sources
// of mounts that are declared or belong to the mesh's own directories. Mounts of other things,
// an engine's socket for one, are left as they are.
//
// # What it cannot do
//
// There is no resource, section or command that runs what the declaration does not say, and
// no credential of a database. systemd is not used yet: services are always run by the host's
// own supervisor.
package host
