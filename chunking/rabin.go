package chunking

import (
	"math/bits"
	"sync"
)

// rabinPolynomial is the irreducible polynomial of degree 63 that LBFS uses.
const rabinPolynomial = 0xbfe6b8a5bf378d83

// rabin marks by the Rabin fingerprint of the window: its bytes as the
// coefficients of a polynomial over GF(2), modulo rabinPolynomial. A
// fingerprint whose low bits are all ones is a mark.
type rabin struct {
	main, second uint64 // bits that are ones in marks of rank 0, and in all marks
	blocks       bool   // whether the machine can look at many places at once
	*rabinTables
}

// rabinTables is what follows from the polynomial and the window alone.
type rabinTables struct {
	out   [256]uint64                // what the oldest byte of a window has added
	carry [256]uint64                // what the bits that are shifted out of a fingerprint come back as
	byte0 [rollingWindow]uint64      // matrices: the low byte of the fingerprint, by the byte k places back
	low   [rollingWindow][256]uint32 // the low half of the fingerprint, likewise
}

var rabinOnce = sync.OnceValue(makeRabinTables)

func makeRabinTables() *rabinTables {
	t := new(rabinTables)
	for x := range 256 {
		h := uint64(x)
		for k := range rollingWindow {
			t.low[k][x] = uint32(h)
			t.out[x] = h
			h = polyShift8(h)
		}
		t.carry[x] = polyShift8(uint64(x)<<55) ^ uint64(x)<<63
	}
	for k := range t.byte0 {
		t.byte0[k] = matrixOf(func(x byte) byte { return byte(t.low[k][x]) })
	}
	return t
}

// polyShift8 multiplies a polynomial of degree below 63 by x^8.
func polyShift8(h uint64) uint64 {
	for range 8 {
		h <<= 1
		if h>>63 != 0 {
			h ^= rabinPolynomial
		}
	}
	return h
}

func newRabin(main, second uint64) *rabin {
	return &rabin{main: main - 1, second: second - 1, blocks: hasRabinBlocks, rabinTables: rabinOnce()}
}

func (r *rabin) reach() int { return rollingWindow }

func (r *rabin) rank(h uint64) uint64 {
	if h&r.main == r.main {
		return 0
	}
	return 1
}

func (r *rabin) next(data []byte, from, to int) (end int, rank uint64) {
	if r.blocks {
		for ; to-from >= rabinBlock-1; from += rabinBlock {
			var hits [rabinBlock / 64]uint64
			rabinHits(&data[from-1], &r.byte0, &hits)
			if end, rank := r.check(data, from, &hits); end > 0 {
				return end, rank
			}
		}
		if from > to {
			return -1, 0
		}
	}
	return r.roll(data, from, to)
}

// rabinBlock is the number of places that rabinHits looks at.
const rabinBlock = 256

// check returns the first mark among hits, places whose fingerprint has a low
// byte of ones; bit 0 is the place from.
func (r *rabin) check(data []byte, from int, hits *[rabinBlock / 64]uint64) (end int, rank uint64) {
	for i, word := range hits {
		for ; word != 0; word &= word - 1 {
			end := from + 64*i + bits.TrailingZeros64(word)
			if h := r.fingerprint(data[end-rollingWindow : end]); h&r.second == r.second {
				return end, r.rank(h)
			}
		}
	}
	return -1, 0
}

// fingerprint returns the low half of the fingerprint of a window.
func (r *rabin) fingerprint(window []byte) uint64 {
	var even, odd uint32
	for k := 0; k < rollingWindow; k += 2 {
		even ^= r.low[k][window[rollingWindow-1-k]]
		odd ^= r.low[k+1][window[rollingWindow-2-k]]
	}
	return uint64(even ^ odd)
}

// roll is the sequential form: it moves the window byte by byte.
func (r *rabin) roll(data []byte, from, to int) (end int, rank uint64) {
	var h uint64
	for _, b := range data[from-rollingWindow : from] {
		h = h<<8 ^ r.carry[byte(h>>55)] ^ uint64(b)
	}
	for end = from; ; end++ {
		if h&r.second == r.second {
			return end, r.rank(h)
		}
		if end == to {
			return -1, 0
		}
		h ^= r.out[data[end-rollingWindow]]
		h = h<<8 ^ r.carry[byte(h>>55)] ^ uint64(data[end])
	}
}
