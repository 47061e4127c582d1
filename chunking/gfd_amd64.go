package chunking

import "golang.org/x/sys/cpu"

// gfdScanners holds the kernels that this machine can run, the fastest first.
var gfdScanners = amd64Scanners()

func amd64Scanners() []gfdScanner {
	var s []gfdScanner
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512GFNI && cpu.X86.HasBMI1 {
		s = append(s, gfdScanner{"avx512", gfdScanAVX512})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasBMI1 {
		s = append(s, gfdScanner{"avx2", gfdScanAVX2})
	}
	return append(s, gfdScanner{"generic", gfdScanGeneric})
}

//go:noescape
func gfdFirstAVX512(p *byte, n int, k *gfdKey) int

func gfdScanAVX512(data []byte, from, to int, k *gfdKey) int {
	return gfdScanBlocks(gfdFirstAVX512, data, from, to, k)
}

//go:noescape
func gfdFirstAVX2(p *byte, n int, k *gfdKey) int

func gfdScanAVX2(data []byte, from, to int, k *gfdKey) int {
	return gfdScanBlocks(gfdFirstAVX2, data, from, to, k)
}

//go:noescape
func readAVX512(p *byte, n int)

//go:noescape
func readAVX2(p *byte, n int)

// readMemory reads data, whose length is a positive multiple of 256.
func readMemory(data []byte) {
	switch {
	case cpu.X86.HasAVX512F:
		readAVX512(&data[0], len(data))
	case cpu.X86.HasAVX2:
		readAVX2(&data[0], len(data))
	default:
		readGeneric(data)
	}
}
