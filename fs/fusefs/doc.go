// Package fusefs shows a volume to the kernel over FUSE. It translates and decides nothing: what an operation does is the
// business of package fs, what an error looks like to a program is said in one table (errno.go), what the kernel may cache
// in the package's options (options.go).
//
// It binds to the raw protocol with node id = inode number, so no tree of nodes is kept in memory: what the kernel knows is
// counted by the volume (Lookup and its kin against Forget).
//
// # Requests
//
// Every request has a context of its own, which ends when the program that asked gives up (interrupt.go); it is valid until the
// volume's method returns. Requests run concurrently, those of one directory too. One that is pending for over a minute is
// named in the log with its operation and inode.
//
// # What the kernel caches
//
// Entries, names that do not exist, attributes and file content are cached without being asked for again, because every
// change reaches the kernel: changes by programs pass through it, and all others are announced by the volume through
// fs.Notifier. A volume that changes something behind the kernel's back and does not say so shows stale data.
//
// # The deadlock rule
//
// Announcing waits for the kernel's lock on the directory, or for pages that are being read, and whoever holds those may be
// waiting for an answer from the volume. So the notifier is called with no lock held that any request may need, and never by
// the goroutine that is serving a request.
package fusefs
