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
	b, i := d.b, 0 // d itself is written once: this is what decoding a node spends its time on
	for range count {
		if i < len(b) && b[i] < 0x80 && int(b[i]) <= limit {
			sum += int(b[i])
			i++
			continue
		}
		rest := decoder{b: b[min(i, len(b)):]}
		sum += rest.uvarint(limit)
		if rest.bad {
			d.fail()
			return nil, 0
		}
		i = len(b) - len(rest.b)
	}
	d.b = b[i:]
	return b[:i:i], sum
}

// lengths goes through a column that has been checked.
type lengths struct {
	column []byte
	i      int
}

// next returns the next number.
func (l *lengths) next() int {
	v := int(l.column[l.i])
	l.i++
	if v < 0x80 {
		return v
	}
	return l.long(v)
}

func (l *lengths) long(v int) int {
	v &= 0x7f
	for shift := 7; ; shift += 7 {
		c := int(l.column[l.i])
		l.i++
		v |= c & 0x7f << shift
		if c < 0x80 {
			return v
		}
	}
}

func (d *decoder) fail() {
	d.bad, d.b = true, nil
}
