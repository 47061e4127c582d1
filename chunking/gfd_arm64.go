package chunking

// gfdScanners holds the kernels that this machine can run, the fastest first.
var gfdScanners = []gfdScanner{{"neon", gfdScanNEON}, {"generic", gfdScanGeneric}}

//go:noescape
func gfdFirstNEON(p *byte, n int, k *gfdKey) int

func gfdScanNEON(data []byte, from, to int, k *gfdKey) int {
	return gfdScanBlocks(gfdFirstNEON, data, from, to, k)
}

func readMemory(data []byte) { readGeneric(data) }
