// Package toolchain compiles a bundle's source with what its language calls for: Go, Node,
// Rust or Python, on the machine ([Host]) or in containers of a toolchain image
// ([Container]). Both run the same commands, so the same version gives the same bytes.
//
// # One compilation
//
// A language turns the source into a list of steps. First, with a network, what a lock file
// pins is fetched; no code of the module or of a dependency runs there. Then, without one,
// whatever is to be compiled is. In containers each step is one, and all of them share a
// volume of this compilation alone, which goes when it ends.
//
// Only what is locked is fetched: by go.sum, package-lock.json, Cargo.lock, or
// requirements.txt with versions and hashes. A dependency that nothing pins is refused with
// [ReasonNotLocked], before anything is fetched.
//
// # Caches
//
// Downloads, and for Go compiled packages, are kept between compilations. Every cache is
// checked by content when it is read (go.sum, integrity, checksum, hash, action id), and
// none can be written by a step in which code of a module runs; so a cache decides how
// long a compilation takes, and never what it gives.
//
// # Code that runs
//
// Compiling Go and packing Python run no code of the module. A "build" script of a
// package.json does, and so do build.rs and procedural macros of Rust. In containers that
// is bounded; on the machine it has the rights of whoever started the builder, and happens
// only for a [Host] that says Trusted.
package toolchain
