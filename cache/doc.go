// Package cache keeps everything of a repository that is local to one machine:
// the log of what was written and not yet committed, local commits, what waits
// for upload, sealed multichunks on disk, decoded chunks in memory, and in
// Badger whatever can be rebuilt.
//
// It promises three things. Bytes are right or there is an error: a chunk or
// node is checked against its id whenever it enters memory, wherever it came
// from. What Log.Sync or LocalCommit.Finish has acknowledged survives a killed
// process and a power cut. Disk and memory stay within their budgets, and what
// waits for upload is never given up to meet them.
//
// Cache.Chunk, Cache.ReadChunks and Cache.Node are the only ways to read, Cache.AddChunk and
// LocalCommit the only ways to store. What the bytes mean is left to package fs.
// How they lie on the disk is in FORMAT.md.
//
// The truth on disk is the log, the local commits, the spool, the receipts of
// uploads and the state of the client; all of it goes through Files. Badger
// goes its own way and may be lost at any time.
//
// Locks, in the order in which they are taken: Cache.publishMu, LocalCommit.mu,
// Cache.finishMu, Cache.stateMu, Cache.packMu, Log.appendMu, Cache.evictMu, and
// then those under which no other work is done: Cache.mu, Log.mu, disk.mu,
// uploads.mu, space.mu, of which Cache.mu is taken before Log.mu and that before
// space.mu. No call to the remote is made under any of them but publishMu.
package cache
