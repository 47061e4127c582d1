// Package fs is the file system without FUSE: a Volume whose methods are named after the system calls they serve.
//
// A volume is one sorted map of records (docs/architecture.md, "The state of a volume"). Base tree and base contents are
// immutable and lie in the cache or on the remote; what changed since the last local commit lies in an overlay of records
// and in extents of open contents, and every change stands in the log before it is answered.
//
// Lock order: Volume.cutMu, Volume.mu, inode.mu, then whatever cache locks. None of them is held over a remote call: a
// transaction that meets a node that is not on this machine is abandoned, the node is fetched, and the transaction runs
// again. Transactions therefore decide everything before they change anything.
package fs
