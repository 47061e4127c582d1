package chunking

import "encoding/binary"

// ReadMemory reads every byte of data, as fast as this machine can: what no
// chunker of the same data can exceed unless it skips. It is for measuring.
func ReadMemory(data []byte) {
	n := len(data) &^ 255
	if n > 0 {
		readMemory(data[:n])
	}
	readGeneric(data[n:])
}

// Scan runs the first stage of c over all of data, nothing skipped, and
// returns the number of marks, or -1 if c has no such stage. It is for
// measuring.
func Scan(c Chunker, data []byte) int {
	t, ok := c.(*twoStage)
	if !ok {
		return -1
	}
	marks := 0
	for from := t.mark.reach(); from <= len(data); marks++ {
		end, _ := t.mark.next(data, from, len(data))
		if end < 0 {
			break
		}
		from = end + 1
	}
	return marks
}

// Kernel names the implementation that New chooses for GFD on this machine,
// such as "avx512".
func Kernel() string { return gfdScanners[0].name }

// sink keeps reads from being optimised away.
var sink uint64

func readGeneric(data []byte) {
	var a, b uint64
	for ; len(data) >= 16; data = data[16:] {
		a |= binary.LittleEndian.Uint64(data)
		b |= binary.LittleEndian.Uint64(data[8:])
	}
	for _, c := range data {
		a |= uint64(c)
	}
	if a|b == 1 { // hardly ever: the sink is not contended
		sink = a
	}
}
