// Package provenance is what a builder says of a build, and the check of it: an in-toto
// Statement v1 with the predicate SLSA Provenance v1, signed as a DSSE envelope with the
// builder's Ed25519 key, and the lists of what bundles were made of that it vouches for.
package provenance
