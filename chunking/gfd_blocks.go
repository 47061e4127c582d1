//go:build amd64 || arm64

package chunking

// gfdScanBlocks scans whole blocks of 64 bytes with an assembly kernel, and
// what is left with the portable one.
func gfdScanBlocks(first func(*byte, int, *gfdKey) int, data []byte, from, to int, k *gfdKey) int {
	if n := (to - from) &^ 63; n > 0 {
		if i := first(&data[from], n, k); i >= 0 {
			return from + i
		}
		from += n
	}
	if from == to {
		return -1
	}
	return gfdScanGeneric(data, from, to, k)
}
