// Package e2e tests the program as its users meet it: real mounts, made by the
// built command, on real directories, with processes that are killed and bytes
// that are counted where they lie.
//
// It runs on Linux, and imports nothing of the project. What a test leaves behind, a mount or a
// process, fails it. DEDUPFS_LONG=1 runs the sizes and counts of the soak;
// -seed replays a random test.
package e2e
