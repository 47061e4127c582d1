//go:build !amd64

package chunking

const hasSignBlocks = false

func signFirst(*byte, int, *[3][2][16]byte) int {
	panic("chunking: no signFirst on this machine")
}
