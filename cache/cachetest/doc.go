// Package cachetest has local disks for tests of whatever keeps its truth in
// cache.Files: one in memory that can lose its power, and one that fails.
package cachetest
