// Package clone brings one commit of one repository to a builder, fresh every time.
//
// [Get] fetches the one ref, shallow, through package git, into memory or, when it is large,
// into the build's own directory. Nothing is ever checked out: the bytes of a file are the
// bytes of its blob, so the machine's git configuration, hooks, filters, line-end conversion,
// credential helpers and umask cannot change what is built. What may be fetched is bounded.
//
// A submodule is fetched at its recorded commit when something beneath its path is asked for,
// within the same limit. Its address is one the mesh speaks; a repository of a server may not
// name a path of the builder's machine; the job's credential goes to no other server than the
// repository's own. A pointer into LFS storage is refused, wherever it lies.
//
// Local directories are read only when the builder was started by hand. A builder that is
// a module sees no file of its node, and a path from a job would be read with the
// builder's eyes.
//
// Every failure is an [Error] with a reason; text a server sent is capped and credentials are
// cut out of it.
package clone
