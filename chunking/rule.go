package chunking

import "math"

// A marker is the first stage of a chunker: it finds the marks of a stream,
// the places where a chunk may end. Whether a place is marked depends only on a
// few bytes before it, so that any part of a stream can be searched without the
// rest.
type marker interface {
	// reach is the number of bytes before a place that are read to decide
	// whether it is a mark.
	reach() int

	// next returns the first mark of data in [from, to], as the offset of the
	// byte after it, and the mark's rank: the lower, the stronger. It returns
	// -1 if there is none. from is at least reach; data[from-reach : to] is all
	// that it reads.
	next(data []byte, from, to int) (end int, rank uint64)
}

// A rule is the second stage: it chooses the ends of chunks among the marks.
// A chunk ends at its first mark that is strong enough for the length that the
// chunk then has, or else at the strongest one seen when it reaches max.
type rule struct {
	min, max int    // bounds of a chunk in bytes; the last may be smaller
	avg      int    // the length from which weaker marks do
	below    uint64 // largest rank that ends a chunk shorter than avg
	above    uint64 // largest rank that ends any other
	backup   backup
}

// A backup says where to cut a chunk that has reached max.
type backup uint8

const (
	backupNone  backup = iota // at max
	backupFirst               // at the strongest mark, of equal ones the first
	backupLast                // at the strongest mark, of equal ones the last
)

// end returns the end of the chunk that data begins with, or 0 if it depends
// on what follows data.
func (r *rule) end(m marker, data []byte, eof bool) int {
	limit := min(len(data), r.max)
	reserve, reserveRank := r.max, uint64(math.MaxUint64)
	for from := r.min; from <= limit; {
		end, rank := m.next(data, from, limit)
		if end < 0 {
			break
		}
		enough := r.below
		if end >= r.avg {
			enough = r.above
		}
		if rank <= enough {
			return end
		}
		if rank < reserveRank || r.backup == backupLast && rank == reserveRank {
			reserve, reserveRank = end, rank
		}
		from = end + 1
	}
	switch {
	case len(data) >= r.max && r.backup == backupNone:
		return r.max
	case len(data) >= r.max:
		return reserve
	case eof:
		return len(data)
	}
	return 0
}

// twoStage is a chunker made of a marker and a rule.
type twoStage struct {
	name string
	rule rule
	mark marker
}

func (c *twoStage) Name() string           { return c.name }
func (c *twoStage) Bounds() (min, max int) { return c.rule.min, c.rule.max }

func (c *twoStage) end(data []byte, eof bool) int { return c.rule.end(c.mark, data, eof) }

func (c *twoStage) Ends(dst []int, data []byte, eof bool) []int {
	return appendEnds(dst, c, data, eof)
}

// An ender finds the end of one chunk: that with which data begins, or 0 if it
// depends on what follows data.
type ender interface {
	end(data []byte, eof bool) int
}

// appendEnds is Ends for chunkers that find one end after the other.
func appendEnds(dst []int, c ender, data []byte, eof bool) []int {
	for start := 0; start < len(data); {
		n := c.end(data[start:], eof)
		if n == 0 {
			break
		}
		start += n
		dst = append(dst, start)
	}
	return dst
}
