package chunking

import "golang.org/x/sys/cpu"

// hasSignBlocks says whether signFirst can run.
var hasSignBlocks = cpu.X86.HasAVX2

// signFirst returns the first place in p[0:n] that the tables allow, or -1. n
// is a positive multiple of 32; two bytes after p[n-1] are read.
//
//go:noescape
func signFirst(p *byte, n int, half *[3][2][16]byte) int
