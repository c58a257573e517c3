// Package genesis takes a bare machine to a running mesh that has built its own controller,
// catalogue and builder, and takes it away again.
//
// An installation is a list of named phases ([Installer.Install]), each check-then-do and
// written into a journal with its time: an installer that was killed anywhere is run again,
// finds done what is done and ends the same.
//
//	preflight   what can fail later, first
//	keys        authority, declaration key, registry key, operator's credential, node identity
//	foundation  registry, PostgreSQL and broker, as services the host supervises from here on
//	database    roles and the database, with the rights of each
//	carry       images that no registry need be asked for go into the mesh's own
//	source      the repository the mesh's own modules are built from
//	init build  the ordinary builder, run without a broker, builds controller, catalogue, builder
//	hand-over   the database takes over node, operator, manifests and assignments; the host
//	            gets the first declaration, and the controller the mesh built answers
//	watch       the catalogue watches the source it was built from
//	builder     an account is issued, the builder assigned and pushed
//	proof       every component's digest resolves as a manifest in the mesh's own registry
//
// In the processes foundation everything lies under one directory and listens on unprivileged
// ports. Registry, PostgreSQL and broker have no image to pin there, and the proof says so.
package genesis
