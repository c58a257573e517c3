// Package registry is the mesh's one home for what is built: images, bundles and archives in
// an ordinary OCI registry, reached by every builder, host and controller through this package.
//
// # Layout
//
//	modules/<module>             published manifests, and the blobs of archives and bundles
//	modules/<module>/<artifact>  images: built, mirrored from upstream, or made from a bundle
//	carried/<host>/<path>        images that came with the installer, found before the outside is asked
//
// Everything is named by digest. What is pushed as a manifest also gets the tag m-<hex>, a
// function of its content, because garbage collectors remove what no tag names.
//
// # Publication
//
// [Client.PublishManifest] pushes blobs, checks that every image the manifest names resolves,
// pushes the manifest and reads it back. The push of the manifest is the commit point: broken
// off anywhere before it, nothing resolves that a reader could take for a module; broken off
// after it, doing it again finds everything there. Nothing is ever changed in place.
//
// # Parts
//
// [Server] is the registry itself for a mesh that runs none yet: the distribution project's
// library on disk behind TLS and scoped tokens. [Client] speaks to it or to any other
// distribution of the same interface. [Proxy] lets an engine on the same machine pull without
// being told about certificates or tokens.
//
// A token says what its bearer may do in which repositories ([Claims]); it is signed by the
// mesh and lives until the signing key is rotated, so that a node pulls with every controller
// down. Failures that pass by themselves (no connection, 429, 5xx) are retried until the
// context ends or the attempts are used up; everything else ends the call at once. A transfer
// that moves nothing for a while ends by an idle timeout, however long one that moves may take.
//
// Every test of a [Client] runs on the embedded registry and on the distribution project's 2.8
// (registrytest.Each).
package registry
