// Package catalogue watches repositories and records what stands in them: the source of
// every module, who holds a name when two places claim it, and the wake-up that tells the
// controller. It never builds and never removes anything from a machine.
//
// # The life of a commit here
//
// [Service.Run] leads when it holds an advisory lock, so that several catalogues can run and
// one polls. Each repository has a loop of its own: one ls-remote per tick; when the ref
// moved, one shallow fetch ([source.Client.Fetch]), a walk over the trees that does not
// descend into what is known, and a parse of each module.json that changed. Then ONE
// transaction records sources, conflicts, the repository's commit and a row in
// catalogue.changes. The commit moves forward there or not at all: whatever fails before
// leaves the ref looking new, and the next tick does it again.
//
// A tick on which nothing moved writes nothing, save that last_checked is brought up to date
// once in ten intervals.
//
// # What is true of sources
//
// A module's identity is its name. At most one row holds a name (unique index). The holder
// stands, even while its file is invalid, until the file goes or is renamed; another place
// with the same name is a conflict whose error names both. When the holder goes, a claimant
// takes the name: a moved module is the same module. With no claimant the row stays as
// "removed", and nothing else happens. A repository that cannot be read, or whose branch is
// gone, changes no source at all.
//
// # Failure
//
// A repository's failures are its own: a reason with a message, its loop backing off up to
// [Config.MaxBackoff]. Repositories whose last try failed use other slots than the healthy
// ones, so that a dozen hanging servers delay nobody. When the database goes, the leader
// stops, reconnects and loads everything anew; nothing is remembered that is not recorded.
//
// Notifications, webhooks and watches of directories only shorten the wait: each may be lost,
// and polling finds what they missed.
//
// # Webhooks
//
// [Service.Hooks] takes the notices of forges in any process, the leader or not. A notice is
// matched by the addresses it names to the watched repositories, must be proved by the secret of
// one of them (see package notice), and then asks the leader through the database to look.
// It says nothing that is believed, so sending one again does no more than the first did, and
// however many come, a repository is looked at once in [noticeGap]. What became of them is
// counted in memory and stored once a second, when there is anything.
package catalogue
