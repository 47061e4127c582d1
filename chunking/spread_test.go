package chunking

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
)

// spread describes the sizes of chunks but the last of each stream.
type spread struct {
	n, atMax, sum, squares float64
}

func (s *spread) add(ends []int, max int) {
	start := 0
	for _, end := range ends[:len(ends)-1] {
		n := float64(end - start)
		s.n++
		s.sum += n
		s.squares += n * n
		if end-start == max {
			s.atMax++
		}
		start = end
	}
}

func (s *spread) mean() float64 { return s.sum / s.n }

// variation is the standard deviation in units of the mean.
func (s *spread) variation() float64 {
	return math.Sqrt(s.squares/s.n-s.mean()*s.mean()) / s.mean()
}

// TestSpread: on random data the mean is the nominal one, the sizes vary by
// about a third of it, and hardly a chunk is cut where there is no mark.
func TestSpread(t *testing.T) {
	data := randomBytes(3, 32<<20)
	for _, kib := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256} {
		var s spread
		for key := range 2 + kib/4 {
			c := newChunker(t, fmt.Sprintf("GFD-%d", kib), []byte(fmt.Sprintf("%32d", key)))
			s.add(c.Ends(nil, data, true), 2*kib<<10)
		}
		off := s.mean()/float64(kib<<10) - 1
		t.Logf("GFD-%d: %.0f chunks, mean %+.2f%%, variation %.3f, %.3f%% at max", kib, s.n, 100*off, s.variation(), 100*s.atMax/s.n)
		if math.Abs(off) > 0.02 {
			t.Errorf("GFD-%d: mean is off by %.2f%%", kib, 100*off)
		}
		if v := s.variation(); v < 0.28 || v > 0.36 {
			t.Errorf("GFD-%d: variation %.3f", kib, v)
		}
		if s.atMax/s.n > 0.001 {
			t.Errorf("GFD-%d: %.3f%% of the chunks have no mark", kib, 100*s.atMax/s.n)
		}
	}
}

// TestSparseNoise: where one byte in 64 is not zero there are few marks, and
// chunks still are no more than half again as long.
func TestSparseNoise(t *testing.T) {
	rng := newRand(t)
	data := sample(rng, "sparse", 32<<20)
	for _, kib := range []int{4, 8, 64, 256} {
		var s spread
		for range 8 {
			c := newChunker(t, fmt.Sprintf("GFD-%d", kib), randomKey(rng))
			s.add(c.Ends(nil, data, true), 2*kib<<10)
		}
		if r := s.mean() / float64(kib<<10); r > 1.5 {
			t.Errorf("GFD-%d: mean is %.2f times the nominal", kib, r)
		} else {
			t.Logf("GFD-%d: mean is %.2f times the nominal", kib, r)
		}
	}
}

// TestResync tells how soon the cuts of two streams agree again after bytes
// were inserted in one.
func TestResync(t *testing.T) {
	rng := newRand(t)
	executable, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	const size = 4 << 20
	long := sample(rng, "random", 100_000)
	for _, in := range []struct {
		name string
		data []byte
		most float64 // chunks of nominal size until the cuts agree, on average
	}{
		{"random", sample(rng, "random", size), 1},
		{"text", sample(rng, "text", size), 1},
		{"executable", executable[:min(size, len(executable))], 1},
		{"bits", sample(rng, "bits", size), 1},
		{"counter", sample(rng, "counter", size), 1},
		{"periodic", slices.Repeat(long, size/len(long)), 1},
		{"sparse", sample(rng, "sparse", size), 2.5},
	} {
		const avg, edits = 8 << 10, 200
		total := 0
		for range edits {
			c := newChunker(t, "GFD-8", randomKey(rng))
			at := rng.IntN(len(in.data) / 2)
			insert := sample(rng, "random", 1+rng.IntN(16))
			total += resync(c, in.data[:at+len(in.data)/2], at, insert)
		}
		mean := float64(total) / edits / avg
		t.Logf("%s: the cuts agree after %.2f chunks", in.name, mean)
		if mean > in.most {
			t.Errorf("%s: the cuts agree after %.2f chunks, want at most %.2f", in.name, mean, in.most)
		}
	}
}

// resync returns the distance from at to the first end that data has in common
// with data in which something was inserted there, or the rest of data.
func resync(c Chunker, data []byte, at int, insert []byte) int {
	// What lies far before at is cut alike.
	_, most := c.Bounds()
	from := 0
	for _, end := range c.Ends(nil, data[:at], false) {
		if end <= at-most {
			from = end
		}
	}
	changed := slices.Concat(data[from:at], insert, data[at:])
	other := c.Ends(nil, changed, true)
	for _, end := range c.Ends(nil, data[from:], true) {
		if _, ok := slices.BinarySearch(other, end+len(insert)); ok && from+end >= at {
			return from + end - at
		}
	}
	return len(data) - at
}
