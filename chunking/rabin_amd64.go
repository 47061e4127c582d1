package chunking

import "golang.org/x/sys/cpu"

// hasRabinBlocks says whether rabinHits can run: it needs GFNI and AVX2.
var hasRabinBlocks = cpu.X86.HasAVX512GFNI && cpu.X86.HasAVX2

// rabinHits sets bit i of hits if the low byte of the fingerprint that ends
// with p[i] is all ones. It reads rollingWindow-1 bytes before p.
//
//go:noescape
func rabinHits(p *byte, matrices *[rollingWindow]uint64, hits *[rabinBlock / 64]uint64)
