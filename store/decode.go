package store

import (
	"encoding/binary"
	"fmt"
)

// corruptf returns an error that wraps ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// decoder reads from the front of b. After the first thing that is not there, is too large or is not in its shortest form,
// bad is set and everything that it returns is zero, so that a parser need look at bad only before it believes a number.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) bytes(n int) []byte {
	if d.bad || n < 0 || n > len(d.b) {
		d.fail()
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uint32() uint32 {
	if p := d.bytes(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

// uvarint reads a number that is at most limit.
func (d *decoder) uvarint(limit int) int {
	if len(d.b) > 0 && d.b[0] < 0x80 && int(d.b[0]) <= limit {
		v := d.b[0]
		d.b = d.b[1:]
		return int(v)
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 || v > uint64(limit) {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return int(v)
}

// column reads count numbers of at most limit each, and returns the bytes that they take and their sum.
func (d *decoder) column(count, limit int) (column []byte, sum int) {
	start := d.b
	for range count {
		sum += d.uvarint(limit)
	}
	if d.bad {
		return nil, 0
	}
	return start[:len(start)-len(d.b)], sum
}

// length reads the next number of a column that has been checked.
func (d *decoder) length() int {
	v := int(d.b[0])
	if v < 0x80 {
		d.b = d.b[1:]
		return v
	}
	u, n := binary.Uvarint(d.b)
	d.b = d.b[n:]
	return int(u)
}

func (d *decoder) fail() {
	d.bad, d.b = true, nil
}
