package store

import (
	"encoding/binary"
	"math"
	"time"
	"unicode/utf8"
)

// Fields that several structures have. Each pair is specified in FORMAT.md; what follows the last known field of a
// structure is ignored.

func appendTime(dst []byte, t time.Time) []byte {
	var ns int64
	if !t.IsZero() {
		ns = t.UnixNano()
	}
	return binary.BigEndian.AppendUint64(dst, uint64(ns))
}

// time reads a time; zero is the zero Time.
func (d *decoder) time() time.Time {
	ns := int64(d.uint64())
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// text reads a text of at most limit bytes.
func (d *decoder) text(limit int) string {
	b := d.bytes(d.uvarint(limit))
	if !utf8.Valid(b) {
		d.fail()
		return ""
	}
	return string(b)
}

// clip returns s as valid UTF-8 of at most limit bytes.
func clip(s string, limit int) string {
	valid := make([]rune, 0, min(len(s), limit))
	size := 0
	for _, r := range s {
		if size += utf8.RuneLen(r); size > limit {
			break
		}
		valid = append(valid, r)
	}
	return string(valid)
}

func (d *decoder) uint64() uint64 {
	if p := d.bytes(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) bytes16() (b [16]byte) {
	copy(b[:], d.bytes(len(b)))
	return b
}

func (d *decoder) bytes32() (b [32]byte) {
	copy(b[:], d.bytes(len(b)))
	return b
}

// count reads the number of items that follow, each of which takes at least size bytes, so that a lying number costs
// nothing.
func (d *decoder) count(size int) int {
	n := d.uvarint(math.MaxInt32)
	if n > len(d.b)/size {
		d.fail()
		return 0
	}
	return n
}

const rootSize = 32 + 16 + 4 + 4

// appendRoot encodes the reference to the root of a tree: its kind goes without saying.
func appendRoot(dst []byte, ref Ref) []byte {
	dst = append(dst, ref.ID[:]...)
	dst = append(dst, ref.Hint.Multichunk[:]...)
	dst = binary.BigEndian.AppendUint32(dst, ref.Hint.Off)
	return binary.BigEndian.AppendUint32(dst, ref.Hint.Len)
}

func (d *decoder) root() Ref {
	ref := Ref{ID: d.bytes32(), Hint: Hint{Multichunk: d.bytes16(), Off: d.uint32(), Len: d.uint32()}}
	if !ref.IsZero() {
		ref.Kind = RefNode
	}
	return ref
}
