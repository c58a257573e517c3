// Package e2e holds the tests that need a whole mesh: raised once by the installer on this
// machine, with its own builder, registry, broker, database and host, and used through the
// command line as a person does. What a part promises by itself is tested beside that part.
package e2e
