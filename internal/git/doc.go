// Package git is how the mesh speaks git: it asks a remote where a ref stands and fetches that
// one commit. The catalogue and the builder both do it through a [Client].
//
// Nothing is ever checked out, and no git program is started. A pack is unpacked into memory as
// it comes; one whose objects are more than [Config.MemoryBytes] is indexed on disk instead, in
// a directory that [Commit.Close] removes; above [Config.MaxBytes] it is refused. A repository on this machine is
// read where it lies. The machine's git and ssh configuration, hooks, filters, credential
// helpers, known hosts and agents have no part in any of it.
//
// HTTP, HTTPS and files go through go-git. SSH is spoken by a session of our own over
// golang.org/x/crypto/ssh, because go-git's connects without a context (a server that accepts
// and says nothing would hold a connection for ever) and reads ~/.ssh/config. A server's key
// must be one of those pinned with the credential; there is no trust on first use.
//
// A ref is a branch, a tag (its commit is meant, not the tag object) or a commit's 40 digits.
// A commit that is the tip of nothing cannot be asked for on every server, and has no name to
// record, so all branches and tags are fetched in full and the first that holds it names it.
//
// Every failure is an [*Error] whose [Reason] says what a person has to look at. Text a remote
// sent may stand in it, so messages are cut short, made printable and free of the credentials
// that were sent.
package git
