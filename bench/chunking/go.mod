module github.com/dedupfs/dedupfs/bench/chunking

go 1.26.0

require (
	github.com/PlakarKorp/go-cdc-chunkers v1.1.0
	github.com/dedupfs/dedupfs v0.0.0-00010101000000-000000000000
	github.com/jotfs/fastcdc-go v0.2.0
	github.com/restic/chunker v0.4.0
)

require (
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	github.com/zeebo/blake3 v0.2.4 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/dedupfs/dedupfs => ../..
