// Package composefile turns a Compose file into a module.json, for `mesh module import`.
//
// The whole file becomes one module: a container for each service, an artifact for each image
// that is pulled or built, a directory for each named volume. What a module cannot say, or the
// importer does not know, is never dropped in silence: every attribute is either carried over
// or named in a [Note].
//
// Compose files are read by the Compose project's own library, which knows their two
// notations of nearly everything. Values of the caller's shell do not get into a file that is
// committed: only a .env beside the Compose file is read, and secrets and env_files become
// secrets that are given to the mesh.
package composefile
