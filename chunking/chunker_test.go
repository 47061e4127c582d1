package chunking

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"testing/iotest"
)

// allNames lists one chunker of every family, and sizes that differ in kind.
var allNames = []string{
	"GFD-1", "GFD-2", "GFD-4", "GFD-8", "GFD-64",
	"Gear-4", "Typed-4",
	"TTTD-4-Adler32", "TTTD-4-PLAIN", "TTTD-4-Rabin", "TTTD-1-Rabin",
	"BSW-4", "BSW-4-Unbounded",
	"Fixed-4", "Fixed-3", "Whole", "Whole-Unbounded",
}

func newChunker(t testing.TB, name string, key []byte) Chunker {
	t.Helper()
	c, err := New(name, key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mixedSample returns data of all kinds, one after the other, with members of
// archives in between.
func mixedSample(rng *rand.Rand, n int) []byte {
	var b []byte
	for len(b) < n {
		switch rng.IntN(3) {
		case 0:
			b = append(b, archive(rng)...)
		default:
			kind := sampleKinds[rng.IntN(len(sampleKinds))]
			b = append(b, sample(rng, kind, 1+rng.IntN(n/4+1))...)
		}
	}
	return b[:n]
}

func checkEnds(t *testing.T, what string, got, want []int) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	t.Fatalf("%s: %d ends, want %d; they differ from number %d: %v, want %v", what, len(got), len(want), i, head(got[i:]), head(want[i:]))
}

func head(ends []int) []int { return ends[:min(len(ends), 3)] }

func TestNew(t *testing.T) {
	for _, name := range allNames {
		c := newChunker(t, name, make([]byte, keySize))
		if c.Name() != name {
			t.Errorf("New(%q).Name() = %q", name, c.Name())
		}
		if lo, hi := c.Bounds(); lo < 1 || lo > hi {
			t.Errorf("%s: bounds %d, %d", name, lo, hi)
		}
	}
	for _, name := range []string{"", "GFD", "GFD-", "GFD-0", "GFD-3", "GFD-08", "GFD-8-", "GFD-2048", "GFD-8-Unbounded", "gfd-8", "Fixed-4-Unbounded", "TTTD-4", "TTTD-4-CRC", "Whole-4"} {
		if _, err := New(name, make([]byte, keySize)); err == nil || !strings.Contains(err.Error(), "GFD-N") {
			t.Errorf("New(%q): error %v, want one that lists the known names", name, err)
		}
	}
	for _, name := range []string{"GFD-8", "Gear-8", "Typed-8"} {
		if _, err := New(name, make([]byte, 31)); err == nil {
			t.Errorf("New(%q) takes a key of 31 bytes", name)
		}
	}
}

func TestSet(t *testing.T) {
	cs, err := DefaultSet().Chunkers(make([]byte, keySize))
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[Kind]string{KindDefault: Default, KindPages: "Fixed-4", KindMedia: "GFD-64"} {
		if got := cs[kind].Name(); got != want {
			t.Errorf("chunker of kind %d is %s, want %s", kind, got, want)
		}
	}
	if _, err := (Set{"GFD-512", "Fixed-4", "GFD-64"}).Chunkers(make([]byte, keySize)); err == nil {
		t.Error("a set takes chunks of 1 MiB")
	}
}

// TestEnds checks the promises of Chunker: that the ends cover the data within
// the bounds, and that each depends only on what it may depend on.
func TestEnds(t *testing.T) {
	rng := newRand(t)
	for _, name := range allNames {
		c := newChunker(t, name, randomKey(rng))
		lo, hi := c.Bounds()
		data := mixedSample(rng, 1<<20+rng.IntN(1<<20))
		ends := c.Ends(nil, data, true)
		start := 0
		for i, end := range ends {
			n, last := end-start, i == len(ends)-1
			if n > hi || n < lo && !last {
				t.Fatalf("%s: chunk %d of %d bytes, bounds are %d, %d", name, i, n, lo, hi)
			}
			if rng.IntN(8) == 0 && !(last && n < hi) && hi < 1<<30 {
				most := min(start+hi, len(data))
				alone := slices.Concat(data[start:most], sample(rng, "random", 100))
				checkEnds(t, name+" on the bytes of one largest chunk", c.Ends(nil, alone[:most-start], most == len(data))[:1], []int{n})
				if most-start == hi {
					checkEnds(t, name+" with other bytes after a largest chunk", c.Ends(nil, alone, false)[:1], []int{n})
				}
			}
			start = end
		}
		if start != len(data) {
			t.Fatalf("%s: the last end is %d of %d", name, start, len(data))
		}
		if hi < len(data) { // a largest chunk is decided, whether or not more follows
			most := data[len(data)-hi:]
			checkEnds(t, name+" at the end of a largest chunk", c.Ends(nil, most, true)[:1], c.Ends(nil, most, false)[:1])
		}
		if got := c.Ends([]int{7}, nil, true); !slices.Equal(got, []int{7}) {
			t.Errorf("%s: ends of nothing = %v", name, got)
		}
	}
}

// TestEndsPieces gives the stream in pieces: a chunk that is decided stays so.
func TestEndsPieces(t *testing.T) {
	rng := newRand(t)
	for _, name := range allNames {
		c := newChunker(t, name, randomKey(rng))
		data := mixedSample(rng, 500<<10+rng.IntN(500<<10))
		want := c.Ends(nil, data, true)
		var got []int
		for start, seen := 0, 0; start < len(data); {
			seen = min(seen+1+rng.IntN(40<<10), len(data))
			ends := c.Ends(nil, data[start:seen], seen == len(data))
			for _, end := range ends {
				got = append(got, start+end)
			}
			if len(ends) > 0 {
				start = got[len(got)-1]
			}
		}
		checkEnds(t, name+" in pieces", got, want)
	}
}

func TestReader(t *testing.T) {
	rng := newRand(t)
	for _, name := range allNames {
		c := newChunker(t, name, randomKey(rng))
		r := NewReader(nil, c)
		for range 3 {
			data := mixedSample(rng, 1+rng.IntN(1500<<10))
			var src io.Reader = bytes.NewReader(data)
			if rng.IntN(2) == 0 {
				src = iotest.DataErrReader(iotest.HalfReader(src))
			}
			r.Reset(src)
			var got []int
			var all []byte
			for {
				chunk, err := r.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, chunk...)
				got = append(got, len(all))
			}
			checkEnds(t, name+" by Reader", got, c.Ends(nil, data, true))
			if !bytes.Equal(all, data) {
				t.Errorf("%s: Reader changed the data", name)
			}
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("Next after the end: %v", err)
			}
		}
	}
}

func TestReaderError(t *testing.T) {
	broken := errors.New("broken")
	data := randomBytes(1, 1<<20)
	c := newChunker(t, "GFD-8", make([]byte, keySize))
	r := NewReader(io.MultiReader(bytes.NewReader(data), iotest.ErrReader(broken)), c)
	want := c.Ends(nil, data, false)
	n := 0
	for {
		_, err := r.Next()
		if err == broken {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != len(want) {
		t.Errorf("%d chunks before the error, want the %d that had been decided", n, len(want))
	}
}

func TestReaderAllocs(t *testing.T) {
	data := randomBytes(1, 8<<20)
	for _, name := range []string{"GFD-4", "GFD-64", "TTTD-4-Rabin", "Fixed-4"} {
		c := newChunker(t, name, make([]byte, keySize))
		src := bytes.NewReader(data)
		r := NewReader(src, c)
		allocs := testing.AllocsPerRun(3, func() {
			src.Reset(data)
			r.Reset(src)
			for {
				if _, err := r.Next(); err != nil {
					break
				}
			}
		})
		if allocs > 0 {
			t.Errorf("%s: %v allocations per stream", name, allocs)
		}
		if _, hi := c.Bounds(); cap(r.buf) > 2*hi+readAhead {
			t.Errorf("%s: a buffer of %d bytes", name, cap(r.buf))
		}
	}
}

func TestPlan(t *testing.T) {
	rng := newRand(t)
	for _, name := range allNames {
		c := newChunker(t, name, randomKey(rng))
		for range 4 {
			data := mixedSample(rng, 1+rng.IntN(2<<20))
			eof := rng.IntN(4) > 0
			want := c.Ends(nil, data, eof)
			p := Plan{Workers: 1 + rng.IntN(4), Segment: 1 + rng.IntN(1<<(10+rng.IntN(11)))}
			if p.Segment < len(data)/1000 {
				p.Segment = len(data)/1000 + 1
			}
			checkEnds(t, name+" by several workers", p.Ends(c, nil, data, eof), want)
			checkEnds(t, name+" in two stages", p.TwoStageEnds(c, nil, data, eof), want)
		}
	}
}

// bounds is a cut in memory: starts of chunks, and the size.
type bounds []int

func (b bounds) Floor(off int64) (int64, error) {
	i := sort.SearchInts(b, int(off)+1)
	if i == 0 {
		return 0, nil
	}
	return int64(b[i-1]), nil
}

func (b bounds) Ceil(off int64) (int64, error) {
	i := sort.SearchInts(b, int(off))
	if i == len(b) {
		i--
	}
	return int64(b[i]), nil
}

// countingReader counts the bytes that are read.
type countingReader struct {
	r *bytes.Reader
	n int
}

func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.n += n
	return n, err
}

// rechunk cuts next by Rechunk, and checks it against cutting it anew. It
// returns the bytes that were read.
func rechunk(t *testing.T, c Chunker, prev, next []byte, lo, hi int) int {
	t.Helper()
	old := bounds(append([]int{0}, c.Ends(nil, prev, true)...))
	src := &countingReader{r: bytes.NewReader(next)}
	emitted := []int{}
	at := int64(-1)
	from, to, err := Rechunk(c, src, int64(len(next)), old, int64(len(prev)), int64(lo), int64(hi), func(off int64, data []byte) error {
		if at >= 0 && off != at {
			t.Fatalf("%s: emit at %d, want %d", c.Name(), off, at)
		}
		at = off + int64(len(data))
		if !bytes.Equal(data, next[off:at]) {
			t.Fatalf("%s: emitted bytes of [%d, %d) are others", c.Name(), off, at)
		}
		emitted = append(emitted, int(at))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, end := range old[1:] {
		if int64(end) <= from {
			got = append(got, end)
		}
	}
	got = append(got, emitted...)
	for i := range old[1:] {
		if int64(old[i]) >= to {
			got = append(got, old[i+1])
		}
	}
	checkEnds(t, c.Name()+" by Rechunk", got, c.Ends(nil, next, true))
	return src.n
}

func TestRechunk(t *testing.T) {
	rng := newRand(t)
	for _, name := range allNames {
		c := newChunker(t, name, randomKey(rng))
		for range 12 {
			prev := mixedSample(rng, 1+rng.IntN(1<<20))
			next := slices.Clone(prev)
			switch rng.IntN(4) {
			case 0: // append
				next = append(next, mixedSample(rng, 1+rng.IntN(100<<10))...)
			case 1: // cut off
				next = next[:rng.IntN(len(next)+1)]
			}
			lo := rng.IntN(len(next) + 1)
			hi := lo + rng.IntN(min(len(next)-lo, 1<<rng.IntN(18))+1)
			copy(next[lo:hi], mixedSample(rng, hi-lo+1))
			rechunk(t, c, prev, next, lo, hi)
		}
	}
}

// TestRechunkReads: a small write costs a few chunks, not the file.
func TestRechunkReads(t *testing.T) {
	rng := newRand(t)
	data := sample(rng, "random", 16<<20)
	for name, most := range map[string]int{"GFD-8": 4 * 8 << 10, "GFD-64": 4 * 64 << 10, "Fixed-4": 4 << 10} {
		c := newChunker(t, name, randomKey(rng))
		const writes = 50
		total := 0
		for range writes {
			next := slices.Clone(data)
			off := rng.IntN(len(next) - 100)
			copy(next[off:], "written")
			total += rechunk(t, c, data, next, off, off+7)
		}
		t.Logf("%s: %d bytes read for a write of 7", name, total/writes)
		if total/writes > most {
			t.Errorf("%s: %d bytes read for a write of 7, want at most %d", name, total/writes, most)
		}
		if n := rechunk(t, c, data, append(slices.Clone(data), 'x'), len(data), len(data)+1); n > most {
			t.Errorf("%s: %d bytes read to append one, want at most %d", name, n, most)
		}
	}
}

func TestRechunkErrors(t *testing.T) {
	c := newChunker(t, "GFD-1", make([]byte, keySize))
	data := randomBytes(1, 100<<10)
	old := bounds(append([]int{0}, c.Ends(nil, data, true)...))
	n := int64(len(data))
	broken := errors.New("broken")
	if _, _, err := Rechunk(c, bytes.NewReader(data), n, old, n, 0, n, func(int64, []byte) error { return broken }); err != broken {
		t.Errorf("error of emit: %v", err)
	}
	if _, _, err := Rechunk(c, bytes.NewReader(data[:50<<10]), n, old, n, 0, n, func(int64, []byte) error { return nil }); err != io.ErrUnexpectedEOF {
		t.Errorf("a source that is too short: %v", err)
	}
	if from, to, err := Rechunk(c, bytes.NewReader(data), n, old, n, 5, 5, nil); from != 0 || to != 0 || err != nil {
		t.Errorf("no change: %d, %d, %v", from, to, err)
	}
}

// FuzzEnds: however a stream is given, in pieces or to several workers, its
// chunks are the same.
func FuzzEnds(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range allNames {
		f.Add(uint8(i), archive(rng), uint16(3000), uint16(700))
		f.Add(uint8(i), sample(rng, "text", 40), uint16(1), uint16(100))
	}
	key := make([]byte, keySize)
	f.Fuzz(func(t *testing.T, name uint8, data []byte, piece, segment uint16) {
		c := newChunker(t, allNames[int(name)%len(allNames)], key)
		if n := len(data); n > 0 && n < 100<<10 { // long enough to be cut
			data = slices.Repeat(data, 1+min(20<<10/n, 200))
		}
		want := c.Ends(nil, data, true)
		step := int(piece) + 1
		var got []int
		for start, seen := 0, 0; start < len(data); {
			seen = min(seen+step, len(data))
			for _, end := range c.Ends(nil, data[start:seen], seen == len(data)) {
				got = append(got, start+end)
			}
			if len(got) > 0 {
				start = got[len(got)-1]
			}
			if len(data)/step > 100 {
				step *= 2
			}
		}
		checkEnds(t, c.Name()+" in pieces", got, want)
		p := Plan{Workers: 2, Segment: max(int(segment), len(data)/50, 1)}
		checkEnds(t, c.Name()+" by two workers", p.Ends(c, nil, data, true), want)
		checkEnds(t, c.Name()+" in two stages", p.TwoStageEnds(c, nil, data, true), want)
	})
}
