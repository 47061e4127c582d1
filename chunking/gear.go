package chunking

import "math/bits"

// gearWindow is how many bytes a gear hash of 64 bits depends on.
const gearWindow = 64

// newGear returns FastCDC's chunker (Xia et al. 2016, 2020) with a keyed table
// of 64-bit gears and normalised chunking of level 2: four times stricter than
// the mean asks for below the mean, and four times laxer above. Its masks are
// the top bits, which depend on the most bytes.
func newGear(name string, avg int, key []byte) (Chunker, error) {
	if err := checkKey(name, key); err != nil {
		return nil, err
	}
	zeros := bits.Len(uint(avg)) - 1
	return newGearRule(name, key, rule{
		min: avg / 4, max: 4 * avg, avg: avg,
		below: 1<<(64-zeros-2) - 1,
		above: 1<<(64-zeros+2) - 1,
	}), nil
}

func newGearRule(name string, key []byte, r rule) *twoStage {
	g := &gear{weakest: r.above}
	stream := expand(key, "dedupfs chunking gear 1")
	for i := range g.table {
		g.table[i] = stream.uint64()
	}
	return &twoStage{name: name, rule: r, mark: g}
}

// gear marks where the gear hash is small, and ranks marks by the hash.
type gear struct {
	table   [256]uint64
	weakest uint64 // the largest hash that is a mark
}

func (g *gear) reach() int { return gearWindow }

func (g *gear) next(data []byte, from, to int) (end int, rank uint64) {
	var h uint64
	for _, b := range data[from-gearWindow : from-1] {
		h = h<<1 + g.table[b]
	}
	for i, b := range data[from-1 : to] {
		h = h<<1 + g.table[b]
		if h <= g.weakest {
			return from + i, h
		}
	}
	return -1, 0
}
