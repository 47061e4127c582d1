package chunking

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A Plan says how several workers cut one stretch of bytes. The chunks are the
// same whatever it says.
type Plan struct {
	Workers int // goroutines; at least 1
	Segment int // bytes that a worker takes at a time; at least 1
}

// Ends is c.Ends, by the workers of p.
//
// As in MUCH (Won, Lim and Min 2015), every segment is cut as if a chunk began
// with it. The real chunks are found afterwards, one segment after the other:
// from where the chunk before ends, segments are cut again until a chunk ends
// where one of the worker's does. From there on the worker was right, for the
// end of a chunk depends on nothing before its start.
func (p Plan) Ends(c Chunker, dst []int, data []byte, eof bool) []int {
	n := (len(data) + p.Segment - 1) / p.Segment
	if p.Workers <= 1 || n <= 1 {
		return c.Ends(dst, data, eof)
	}
	guesses := make([][]int, n)
	p.each(n, func(i int) {
		lo, hi := i*p.Segment, min((i+1)*p.Segment, len(data))
		guesses[i] = c.Ends(nil, data[lo:hi], eof && hi == len(data))
	})
	j := joiner{chunker: c, data: data, eof: eof}
	for i, guess := range guesses {
		dst = j.segment(dst, i*p.Segment, guess)
	}
	return j.finish(dst)
}

// each calls f for 0 to n-1, from the workers of p.
func (p Plan) each(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(p.Workers, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// A joiner walks over the real chunks of data.
type joiner struct {
	chunker Chunker
	data    []byte
	eof     bool

	start int   // where the real chunk starts that is not decided yet
	ends  []int // of a call of the chunker
}

// segment appends the ends of the real chunks that start before the last of a
// segment, which begins at lo and for which guess are the ends after lo.
func (j *joiner) segment(dst []int, lo int, guess []int) []int {
	for len(guess) > 0 && j.start < lo+guess[len(guess)-1] {
		if j.start != lo {
			at, ok := slices.BinarySearch(guess, j.start-lo)
			if !ok {
				n := len(dst)
				if dst = j.step(dst); len(dst) == n {
					return dst
				}
				continue
			}
			guess = guess[at+1:]
		}
		for _, end := range guess {
			dst = append(dst, lo+end)
		}
		j.start = lo + guess[len(guess)-1]
	}
	return dst
}

// step appends the end of the next real chunk, if it is decided.
func (j *joiner) step(dst []int) []int {
	n := j.one(j.data[j.start:])
	if n == 0 {
		return dst
	}
	j.start += n
	return append(dst, j.start)
}

// one returns the end of the first chunk of rest, or 0 if it is not decided.
func (j *joiner) one(rest []byte) int {
	if c, ok := j.chunker.(ender); ok {
		return c.end(rest, j.eof)
	}
	// The others are not known to stop at the first. The least bytes that can
	// decide a chunk decide few.
	_, most := j.chunker.Bounds()
	n := min(most, len(rest))
	j.ends = j.chunker.Ends(j.ends[:0], rest[:n], j.eof && n == len(rest))
	if len(j.ends) == 0 {
		return 0
	}
	return j.ends[0]
}

// finish appends the ends of the chunks that are left.
func (j *joiner) finish(dst []int) []int {
	start := j.start
	n := len(dst)
	dst = j.chunker.Ends(dst, j.data[start:], j.eof)
	for i := range dst[n:] {
		dst[n+i] += start
	}
	return dst
}

// TwoStageEnds is c.Ends in the two stages of SS-CDC (Ni et al. 2019): the
// workers of p mark all places of their segments where a chunk may end, and
// then the rule for lengths chooses among the marks. Nothing is skipped, and
// nothing done twice: the time does not depend on the data. Chunkers that have
// no marks cut alone.
func (p Plan) TwoStageEnds(c Chunker, dst []int, data []byte, eof bool) []int {
	t, ok := c.(*twoStage)
	if !ok {
		return c.Ends(dst, data, eof)
	}
	reach := t.mark.reach()
	segments := make([][]mark, (len(data)+p.Segment-1)/p.Segment)
	p.each(len(segments), func(i int) {
		from, to := max(i*p.Segment+1, reach), min((i+1)*p.Segment, len(data))
		for from <= to {
			end, rank := t.mark.next(data, from, to)
			if end < 0 {
				break
			}
			segments[i] = append(segments[i], mark{end, rank})
			from = end + 1
		}
	})
	second := &twoStage{t.name, t.rule, &markList{slices.Concat(segments...), len(data)}}
	return second.Ends(dst, data, eof)
}

type mark struct {
	end  int
	rank uint64
}

// A markList is a marker that knows all marks of a stream of size bytes. The
// data that it is asked about reach to the end of the stream.
type markList struct {
	marks []mark
	size  int
}

func (m *markList) reach() int { return 0 }

func (m *markList) next(data []byte, from, to int) (end int, rank uint64) {
	start := m.size - len(data)
	i, _ := slices.BinarySearchFunc(m.marks, start+from, func(x mark, end int) int { return x.end - end })
	if i == len(m.marks) || m.marks[i].end > start+to {
		return -1, 0
	}
	return m.marks[i].end - start, m.marks[i].rank
}
