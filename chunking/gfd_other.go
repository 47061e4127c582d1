//go:build !amd64 && !arm64

package chunking

// gfdScanners holds the kernels that this machine can run, the fastest first.
var gfdScanners = []gfdScanner{{"generic", gfdScanGeneric}}

func readMemory(data []byte) { readGeneric(data) }
