//go:build !amd64

package chunking

const hasRabinBlocks = false

func rabinHits(*byte, *[rollingWindow]uint64, *[rabinBlock / 64]uint64) {
	panic("chunking: no rabinHits on this machine")
}
