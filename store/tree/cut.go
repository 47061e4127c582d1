package tree

import (
	"encoding/binary"

	"github.com/dedupfs/dedupfs/store"
)

// rule decides where a level's sequence of entries is cut into nodes.
//
// The chance that a node ends after an entry grows with the cube of what the node holds by then (a Weibull distribution
// of sizes with shape 4). Against a constant chance, sizes lie close to their mean: a change rewrites the node it falls
// into, and with geometric sizes that node is on average twice the mean, here 1.1 times. And what a constant chance does
// with bad luck, a long run of entries that no hash cuts, cannot happen: the chance reaches one. Arithmetic is in
// integers, because the result is part of the format.
type rule struct {
	k0, k1   uint64
	min, max int
	scale    uint64 // of the Weibull distribution, in bytes; target / Gamma(5/4)
}

func newRule(o Options) rule {
	return rule{
		k0:    binary.LittleEndian.Uint64(o.Key[:8]),
		k1:    binary.LittleEndian.Uint64(o.Key[8:]),
		min:   o.Min,
		max:   o.Max,
		scale: uint64(o.Target)*1103/1000 + 1,
	}
}

// minChildren is the fewest children of an inner node that is not the last of its level. With fewer than two a level could be
// as long as the one below it, and the tree would never end in a root.
const minChildren = 2

// endsAfter reports whether a node of the given level ends after its last entry, which has the given key and size, when
// it holds count entries of total bytes, that one included.
func (r *rule) endsAfter(level int, key []byte, size, count, total int) bool {
	switch {
	case level > 0 && count < minChildren, total < r.min:
		return false
	case total >= r.max:
		return true
	}
	// The chance of an end within the last size bytes is 4 * size/scale * (total/scale)^3. The ratio has 8 binary places,
	// the chance 32; the limit on the ratio, where the chance is above one for any size, keeps the product below 2^64.
	const limit = 1 << 12
	ratio := min(uint64(total)<<8/r.scale, limit)
	chance := uint64(size) * ratio * ratio * ratio << (2 + 32 - 24) / r.scale
	return sipHash(r.k0^uint64(level), r.k1, key)>>32 < chance
}

// entrySize is the most that e takes in the canonical encoding of a node: its key, its value, a kind and an id for each
// reference, and their numbers.
func entrySize(e *store.Entry) int {
	return entryOverhead + len(e.Key) + len(e.Value) + len(e.Refs)*refSize
}

const (
	entryOverhead = 8
	refSize       = 1 + len(store.ID{})
	nodeOverhead  = 64 // of a node beside its entries, at most
)

// maxRecord is the largest record, by entrySize: with it, a node that was just below its maximum is still within
// store.MaxNode.
func (r *rule) maxRecord() int { return store.MaxNode - nodeOverhead - r.max }
