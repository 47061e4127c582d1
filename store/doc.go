// Package store keeps a repository: sealed multichunks of chunks and nodes, the chunk index, keys, registrations and commits.
//
// It promises that what it returns was written by somebody who holds the repository's keys and has the id that was asked
// for; what lies on the remote is specified in FORMAT.md. It leaves to others what the records of a tree mean (fs), how a
// tree is cut into nodes (store/tree), and what is kept on the local disk (cache).
package store
