package chunking

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; drawn anew if 0")

// newRand returns a source of randomness whose seed is printed if t fails.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("run again with -seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// randomKey returns a key of 32 bytes.
func randomKey(rng *rand.Rand) []byte {
	key := make([]byte, keySize)
	for i := 0; i < keySize; i += 8 {
		binary.LittleEndian.PutUint64(key[i:], rng.Uint64())
	}
	return key
}

// sampleKinds names the kinds of data that sample makes.
var sampleKinds = []string{"random", "bits", "periodic", "sparse", "constant", "counter", "text"}

// sample returns n bytes of one of sampleKinds.
func sample(rng *rand.Rand, kind string, n int) []byte {
	b := make([]byte, n)
	switch kind {
	case "random":
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	case "bits":
		for i := range b {
			b[i] = byte(rng.Uint32() & 1)
		}
	case "periodic":
		period := 1 + rng.IntN(70)
		for i := range b {
			if i < period {
				b[i] = byte(rng.Uint32())
			} else {
				b[i] = b[i-period]
			}
		}
	case "sparse":
		for i := range b {
			if rng.IntN(64) == 0 {
				b[i] = byte(1 + rng.IntN(255))
			}
		}
	case "constant":
		c := byte(rng.Uint32())
		for i := range b {
			b[i] = c
		}
		for range n / 5000 {
			b[rng.IntN(n)] = byte(rng.Uint32())
		}
	case "counter":
		for i := range b {
			b[i] = byte(uint64(i/8) >> (8 * (i % 8)))
		}
	case "text":
		words := []string{"the ", "of ", "and ", "chunk ", "boundary ", "was ", "found ", "\n", "where ", "0x", "}\n", "42 "}
		for i := 0; i < n; {
			i += copy(b[i:], words[rng.IntN(len(words))])
		}
	default:
		panic("no such kind: " + kind)
	}
	return b
}

// specDigest is d32(i) of the package documentation, term by term.
func specDigest(k *gfdKey, b []byte, i int) (d byte) {
	for j := range 32 {
		d ^= bits.RotateLeft8(mulMatrix(k.matrix[j%4], b[i-j]), 4*(j>>2&1)+(j>>3&1)+2*(j>>4&1))
	}
	return d
}

// specMark is the definition of a mark: whether a chunk may end after b[i].
func specMark(k *gfdKey, b []byte, i int) bool {
	match := func(i int) bool { return (specDigest(k, b, i)^byte(k.want8))&byte(k.mask8) == 0 }
	both := func(i int) bool { return match(i) && match(i-gfdLag) }
	return both(i) && !both(i-1)
}

// marksOf returns all marks in b[from:to] by one kernel.
func marksOf(scan gfdScan, k *gfdKey, b []byte, from, to int) (marks []int) {
	for from < to {
		i := scan(b, from, to, k)
		if i < 0 {
			break
		}
		marks = append(marks, i)
		from = i + 1
	}
	return marks
}

func checkKernels(t *testing.T, k *gfdKey, b []byte, from, to int) (marks int) {
	t.Helper()
	var want []int
	for i := from; i < to; i++ {
		if specMark(k, b, i) {
			want = append(want, i)
		}
	}
	for _, s := range gfdScanners {
		if got := marksOf(s.scan, k, b, from, to); !slices.Equal(got, want) {
			t.Errorf("%s: marks in [%d, %d) of %d bytes = %v, want %v", s.name, from, to, len(b), got, want)
		}
	}
	return len(want)
}

func TestKernels(t *testing.T) {
	rng := newRand(t)
	marks := 0
	for i := range 1500 {
		k := expandGFD(randomKey(rng), uint(3+i%4))
		b := sample(rng, sampleKinds[i%len(sampleKinds)], 1000+rng.IntN(3000))
		from := gfdReach + rng.IntN(len(b)-gfdReach)
		marks += checkKernels(t, k, b, from, from+rng.IntN(len(b)-from)+1)
	}
	if marks < 2000 {
		t.Errorf("%d marks compared, too few to mean anything", marks)
	}
}

func FuzzKernels(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), []byte("data"), uint8(1), uint16(0), uint16(400))
	f.Fuzz(func(t *testing.T, key, pattern []byte, width uint8, from, length uint16) {
		if len(key) != keySize || len(pattern) == 0 {
			return
		}
		b := make([]byte, gfdReach+int(from)%1000+int(length)%4000+1)
		for i := range b {
			b[i] = pattern[i%len(pattern)] ^ byte(i/len(pattern))
		}
		checkKernels(t, expandGFD(key, 3+uint(width)%4), b, gfdReach+int(from)%1000, len(b))
	})
}

// TestKeyLayout pins what the assembly knows of gfdKey.
func TestKeyLayout(t *testing.T) {
	var k gfdKey
	for _, f := range []struct {
		name      string
		got, want uintptr
	}{
		{"matrix", unsafe.Offsetof(k.matrix), 0},
		{"rot", unsafe.Offsetof(k.rot), 32},
		{"want8", unsafe.Offsetof(k.want8), 56},
		{"mask8", unsafe.Offsetof(k.mask8), 64},
		{"ahead", unsafe.Offsetof(k.ahead), 72},
		{"nibble", unsafe.Offsetof(k.nibble), 128},
		{"mask32", unsafe.Offsetof(k.mask32), 256},
		{"want32", unsafe.Offsetof(k.want32), 288},
	} {
		if f.got != f.want {
			t.Errorf("offset of %s = %d, want %d", f.name, f.got, f.want)
		}
	}
}

func TestSipHash(t *testing.T) {
	// Key 00..0f and message 00..0f, of the reference implementation.
	const k0, k1 = 0x0706050403020100, 0x0f0e0d0c0b0a0908
	if got, want := sipHash(k0, k1, k0, k1), uint64(0x3f2acc7f57c29bdb); got != want {
		t.Errorf("sipHash = %#x, want %#x", got, want)
	}
}

// forceKernel makes c use one kernel.
func forceKernel(c Chunker, s gfdScanner) {
	c.(*twoStage).mark.(*gfd).scan = s.scan
}

// specRank is the rank of the package documentation, by big integers.
func specRank(k *gfdKey, window []byte) uint64 {
	u := new(big.Int)
	for i := 0; i < 8; i += 2 {
		q := binary.LittleEndian.Uint64(window[8*i:]) + k.rank.hash[i]
		r := binary.LittleEndian.Uint64(window[8*i+8:]) + k.rank.hash[i+1]
		u.Add(u, new(big.Int).Mul(new(big.Int).SetUint64(q), new(big.Int).SetUint64(r)))
	}
	lo := new(big.Int).And(u, new(big.Int).SetUint64(math.MaxUint64))
	hi := new(big.Int).And(u.Rsh(u, 64), new(big.Int).SetUint64(math.MaxUint64))
	return sipHash(k.rank.sip0, k.rank.sip1, lo.Uint64(), hi.Uint64())
}

// specEnd is the cut rule of the package documentation, for a chunk with which
// b begins and a stream that ends with it.
func specEnd(k *gfdKey, avg int, threshold uint64, b []byte) int {
	best, bestRank := 2*avg, uint64(math.MaxUint64)
	for n := avg / 2; n <= min(len(b), 2*avg); n++ {
		if !specMark(k, b, n-1) {
			continue
		}
		rank := specRank(k, b[n-64:n])
		if n < avg && rank <= threshold || n >= avg && rank <= 4*threshold {
			return n
		}
		if rank < bestRank {
			best, bestRank = n, rank
		}
	}
	if len(b) < 2*avg {
		return len(b)
	}
	return best
}

// TestSpecification cuts by the definition, and by the chunker.
func TestSpecification(t *testing.T) {
	rng := newRand(t)
	for i, size := range gfdSizes[:4] {
		avg := 1024 << i
		key := randomKey(rng)
		k := expandGFD(key, size.width)
		for _, kind := range sampleKinds {
			data := sample(rng, kind, 20*avg+rng.IntN(avg))
			var want []int
			for start := 0; start < len(data); {
				start += specEnd(k, avg, size.below, data[start:])
				want = append(want, start)
			}
			c := newChunker(t, fmt.Sprintf("GFD-%d", 1<<i), key)
			checkEnds(t, c.Name()+" on "+kind, c.Ends(nil, data, true), want)
		}
	}
}
