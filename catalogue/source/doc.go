// Package source is what the catalogue asks of repositories: where a ref stands, and every
// module.json of the commit there.
//
// Git itself is spoken by [git.Client]: one shallow fetch, in memory unless it is large, nothing
// checked out. A repository on this machine is read where it lies. Failures are [*git.Error].
//
// Both operations are counted (mesh_git_ls_remote_total, mesh_git_fetch_total): a commit costs
// one of each, however many modules a repository has.
package source
