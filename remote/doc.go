// Package remote keeps objects on any storage that rclone can talk to.
//
// It owns the way of an object to the storage and back: the rclone backend and
// its configuration, retries, speed limits, verification after upload, and what
// an error means. It promises that a put that was acknowledged was seen on the
// storage with its size (and its hash, where the backend tells one), that no put
// leaves a half-written object under its final name where the backend lets it,
// and that a listing is complete or an error. It leaves to others what the bytes
// say: nothing here protects against a storage that lies.
//
// Storage is the contract. Open returns the one implementation for real use;
// package remotetest has one in memory, one that injects faults, and the suite
// that all of them pass.
package remote
