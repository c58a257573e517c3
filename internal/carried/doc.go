// Package carried makes the public images that modules here borrow out of what a machine has
// installed, for a mesh that can reach no registry but its own: busybox, PostgreSQL,
// RabbitMQ and Python from Debian's packages, the Go, Node and Rust that stand on PATH, and
// the mesh's own registry.
//
// Each is written as an OCI image layout into a cache directory, once for each state of the
// machine's packages, and is carried into the mesh's registry under the reference of the
// public image it stands for. The same files give the same image: entries are sorted, times
// and owners are zero, and layers are plain tar, so no compressor decides a digest.
//
// They stand in for the public images where the images' environment is concerned, and nowhere
// else: the PostgreSQL one runs no scripts of /docker-entrypoint-initdb.d.
package carried
