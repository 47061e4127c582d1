// Package remotetest helps to test what stands on a remote.Storage: a storage
// in memory, one that injects faults, and the suite that every storage passes.
package remotetest
