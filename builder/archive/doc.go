// Package archive packs files into a tar that is the same wherever it is packed, and
// unpacks one without trusting it.
//
// # Packing
//
// The rule is fixed, and golden digests in the tests hold it across releases: PAX headers,
// entries sorted by the bytes of their names as written (a directory's ends in a slash, so
// it precedes what it holds), every implied directory present with mode 0755, files 0644
// or 0755, links verbatim and only where they lead inside, time and owner zero, no devices,
// no extended attributes, a hard link as one more file. No compression: compressors change
// their output between releases.
//
// What is packed is a list of [Entry], not a directory: callers make it from git objects,
// so umask, file systems and check-out filters have no say.
//
// # Unpacking
//
// [Unpack] reads once, writes only beneath one empty directory and makes links last, so
// that nothing can be written through one. It refuses absolute names, "..", links that
// leave (also by way of other links), devices, set-user-id and sticky bits, hard links,
// duplicates, names that differ only in case, and more bytes than it was promised. After a
// refusal the directory holds an unfinished tree: the caller removes it.
//
// The package knows neither git nor registries; the host imports it.
package archive
