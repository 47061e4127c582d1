package cache

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/dedupfs/dedupfs/store"
)

// A magic starts every small file, and ends with the version of its format.
type magic [8]byte

// Formats of small files. Those of the log are in record.go.
var (
	magicBase    = magic{'d', 'f', 's', 'b', 'a', 's', 'e', 1}
	magicReceipt = magic{'d', 'f', 's', 'u', 'p', 'l', 'd', 1}
	magicPins    = magic{'d', 'f', 's', 'p', 'i', 'n', 's', 1}
	magicClient  = magic{'d', 'f', 's', 'c', 'l', 'n', 't', 1}
	magicPlace   = magic{'d', 'f', 's', 'p', 'l', 'a', 'c', 1}
	magicKeys    = magic{'d', 'f', 's', 'k', 'e', 'y', 's', 1}
	magicLocal   = magic{'d', 'f', 's', 'l', 'o', 'c', 'l', 1}
	magicEnd     = magic{'d', 'f', 's', 'l', 'e', 'n', 'd', 1}
	magicSpool   = magic{'d', 'f', 's', 's', 'p', 'o', 'l', 1}
)

// appendSmallFile appends a small file: magic, payload, checksum.
func appendSmallFile(dst []byte, m magic, payload []byte) []byte {
	start := len(dst)
	dst = append(dst, m[:]...)
	dst = append(dst, payload...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parseSmallFile returns the payload of a small file.
func parseSmallFile(b []byte, m magic, name string) ([]byte, error) {
	n := len(b) - 4
	if n < len(m) || [7]byte(b) != [7]byte(m[:7]) {
		return nil, corruptf("local file %s", name)
	}
	if crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return nil, corruptf("local file %s has a wrong checksum", name)
	}
	if b[7] != m[7] {
		return nil, newerError(name, int(b[7]), int(m[7]))
	}
	return b[len(m):n], nil
}

// readSmallFile returns the payload of the small file name, of at most limit bytes.
func readSmallFile(fsys Files, name string, m magic, limit int64) ([]byte, error) {
	b, err := readFile(fsys, name, limit)
	if err != nil {
		return nil, err
	}
	return parseSmallFile(b, m, name)
}

// maxSmallFile bounds what Open reads of one small file, in bytes.
const maxSmallFile = 256 << 20

func appendHint(dst []byte, h store.Hint) []byte {
	dst = append(dst, h.Multichunk[:]...)
	dst = binary.BigEndian.AppendUint32(dst, h.Off)
	return binary.BigEndian.AppendUint32(dst, h.Len)
}

func appendRef(dst []byte, r store.Ref) []byte { return appendHint(append(dst, r.ID[:]...), r.Hint) }

func appendBytes(dst, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(b))), b...)
}

// A decoder reads fixed-width fields. After a field that is not there, bad is set and all are zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.b, d.bad = nil, true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// bytes reads a length and as many bytes, which it copies.
func (d *decoder) bytes() []byte { return append([]byte(nil), d.take(int(d.uint32()))...) }

// count reads a number of elements that take at least size bytes each.
func (d *decoder) count(size int) int {
	n := int(d.uint32())
	if n > len(d.b)/size {
		d.b, d.bad = nil, true
		return 0
	}
	return n
}

func (d *decoder) id() (id store.ID) {
	copy(id[:], d.take(len(id)))
	return id
}

func (d *decoder) hint() (h store.Hint) {
	copy(h.Multichunk[:], d.take(len(h.Multichunk)))
	h.Off, h.Len = d.uint32(), d.uint32()
	return h
}

func (d *decoder) nodeRef() store.Ref {
	return store.Ref{ID: d.id(), Kind: store.RefNode, Hint: d.hint()}
}

// done reports whether everything was there and nothing is left.
func (d *decoder) done() bool { return !d.bad && len(d.b) == 0 }

func appendPlace(dst []byte, p Place) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p)))
	for _, piece := range p {
		dst = binary.BigEndian.AppendUint64(dst, uint64(piece.Pos))
		dst = binary.BigEndian.AppendUint32(dst, piece.Len)
	}
	return dst
}

func (d *decoder) place() Place {
	p := make(Place, d.count(12))
	for i := range p {
		p[i] = Piece{Pos: Pos(d.uint64()), Len: d.uint32()}
	}
	return p
}
