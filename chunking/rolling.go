package chunking

import "strings"

// rollingWindow is the window of the fingerprints of LBFS and TTTD.
const rollingWindow = 48

// newTTTD returns the two-threshold two-divisor chunker (Eshghi and Tang 2005)
// with its bounds and divisors for a mean of 1015 bytes scaled to avg. A mark
// of the main divisor ends a chunk; one of the second divisor, half as large,
// is the backup of a chunk that reaches max. Rabin's divisors are rounded to
// powers of two, which makes its test linear in GF(2).
func newTTTD(name string, avg int) Chunker {
	second := uint32(avg * 270 / 1015)
	var m marker = newRabin(uint64(avg)/2, uint64(avg)/4)
	switch {
	case strings.HasSuffix(name, "Adler32"):
		m = adler{divisors{2 * second, second}}
	case strings.HasSuffix(name, "PLAIN"):
		m = plain{divisors{2 * second, second}}
	}
	return &twoStage{
		name: name,
		rule: rule{min: avg * 460 / 1015, max: avg * 2800 / 1015, backup: backupLast},
		mark: m,
	}
}

// newBSW returns the basic sliding window of LBFS (Muthitacharoen et al. 2001)
// without its bounds: a chunk ends wherever the fingerprint of the last 48
// bytes says so, one time in avg. The window lies within the chunk.
func newBSW(name string, avg, limit int) Chunker {
	return &twoStage{
		name: name,
		rule: rule{min: rollingWindow, max: limit},
		mark: newRabin(uint64(avg), uint64(avg)),
	}
}

// divisors are those of TTTD, main being a multiple of second. A fingerprint
// that is one less than a multiple of second is a mark; its rank is 0 if that
// holds for main too, else 1.
type divisors struct{ main, second uint32 }

func (d divisors) rank(fingerprint uint32) (rank uint64, ok bool) {
	switch fingerprint % d.main {
	case d.main - 1:
		return 0, true
	case d.second - 1:
		return 1, true
	}
	return 0, false
}

// adler marks by the Adler-32 checksum of the window.
type adler struct{ divisors }

func (adler) reach() int { return rollingWindow }

func (m adler) next(data []byte, from, to int) (end int, rank uint64) {
	const prime = 65521
	a, b := uint32(1), uint32(0) // b is kept without the modulus: the window is short
	for _, c := range data[from-rollingWindow : from] {
		a += uint32(c)
		b += a
	}
	for end = from; ; end++ {
		if rank, ok := m.rank(b%prime<<16 | a); ok {
			return end, rank
		}
		if end == to {
			return -1, 0
		}
		out := uint32(data[end-rollingWindow])
		a += uint32(data[end]) - out
		b += a - rollingWindow*out - 1
	}
}

// plain marks by the sum of the window's bytes. Sums of 48 bytes are few and
// unevenly spread, so that sizes are far from the mean that was asked for.
type plain struct{ divisors }

func (plain) reach() int { return rollingWindow }

func (m plain) next(data []byte, from, to int) (end int, rank uint64) {
	sum := uint32(0)
	for _, c := range data[from-rollingWindow : from] {
		sum += uint32(c)
	}
	for end = from; ; end++ {
		if rank, ok := m.rank(sum); ok {
			return end, rank
		}
		if end == to {
			return -1, 0
		}
		sum += uint32(data[end]) - uint32(data[end-rollingWindow])
	}
}
