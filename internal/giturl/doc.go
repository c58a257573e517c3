// Package giturl reads a repository's address and knows which addresses are one repository.
//
// The spellings accepted, everywhere in the mesh and nowhere else decided:
//
//	https://host[:port]/path       http too
//	ssh://[user@]host[:port]/path
//	user@host:path                 ssh as scp writes it; path is below the user's home
//	file:///path, /path            a repository on this machine
//
// Two are one repository when their [URL.Key] is equal: case of the host, the scheme's own
// port, ".git", a slash at the end, and ssh instead of https do not tell repositories apart.
//
// An address never carries a credential: it is shown, stored and sent in the clear. One with
// a password or an HTTP user is refused, and no refusal repeats it; see [Redact].
package giturl
