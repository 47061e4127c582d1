package seal

import (
	"fmt"
	"math/bits"
)

const (
	// SegmentSize is the length in bytes of the plaintext of every segment but the last.
	SegmentSize = 64 << 10

	// MaxPlain is the length in bytes of the longest plaintext that is sealed or opened.
	MaxPlain = 128 << 20

	overhead    = 16 // the tag of a segment, bytes
	wireSegment = SegmentSize + overhead
	maxWire     = HeaderSize + (MaxPlain/SegmentSize)*wireSegment
)

// MinWire is the smallest length in bytes that a padded object has; a shorter one was left by a put that broke off.
const MinWire = 4 << 10

// WireSize returns the length in bytes of the sealed form of plain bytes.
func WireSize(plain int) int {
	segments := max(1, (plain+SegmentSize-1)/SegmentSize)
	return HeaderSize + plain + segments*overhead
}

// PlainSize returns the length in bytes of what was sealed into wire bytes, or ErrCorrupt if no object has that length.
func PlainSize(wire int) (int, error) {
	body := wire - HeaderSize
	segments := (body + wireSegment - 1) / wireSegment
	plain := body - segments*overhead
	// Only the one segment of an empty object is empty.
	if wire > maxWire || body < overhead || plain <= (segments-1)*SegmentSize && segments > 1 {
		return 0, fmt.Errorf("no object has %d bytes: %w", wire, ErrCorrupt)
	}
	return plain, nil
}

// PadSize returns the smallest length on the wire, in bytes, that a padded object of at least wire bytes may have: MinWire,
// the multiples of 8 KiB up to 256 KiB, and above 32 steps from each power of two to the next. These are steps no smaller
// than those of Padmé (Nikitin et al. 2019, section 4), so an object's length tells O(log log length) bits. For each of
// them PlainSize is defined.
func PadSize(wire int) int {
	if wire <= MinWire {
		return MinWire
	}
	power := 1 << (bits.Len(uint(wire-1)) - 1) // the largest power of two below wire
	step := max(8<<10, power/32)
	return (wire + step - 1) / step * step
}
