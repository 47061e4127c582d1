package chunking

import "bytes"

var zeros [64 << 10]byte

// IsZero reports whether all of b is zero: such chunks are holes, and are never stored. Its bound is comparing with memory that
// stays in the cache.
func IsZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}
