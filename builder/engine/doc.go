// Package engine is what a builder asks of the container engine on its machine: classic
// image builds, saving and loading images, and containers that live for one command.
//
// It speaks the Docker API, whose version is negotiated and never pinned, so that Docker
// and Podman both serve. Files travel through the archive API and never through bind
// mounts: a builder that is itself a container shares no directory with the engine.
//
// Everything made here is named or labelled after its builder, removed when its use ends,
// and removed by [Engine.Sweep] when the use ended with the process.
package engine
