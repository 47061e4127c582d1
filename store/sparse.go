package store

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"
)

// Deduplication without an index of everything, after Lillibridge et al., Sparse Indexing (FAST 2009), and Bhagwat et al., Extreme
// Binning (MASCOTS 2009): of each multichunk a few chunk ids are known, its hooks. A chunk that is one of them says that its
// neighbours are likely to lie where it lies, and brings in the table of that multichunk, the champion.

// HookShare is of how many chunks one is a hook, on average.
const HookShare = 64

// leastHooks is how many hooks a multichunk has at least, if it has so many chunks.
const leastHooks = 64

// A Hook is a sampled chunk id, of which the first bytes are enough: a wrong one costs reading a table in vain.
type Hook [8]byte

// HookOf returns the hook that a chunk would be.
func HookOf(id ID) Hook { return Hook(id[:len(Hook{})]) }

func (h Hook) uint64() uint64 { return binary.BigEndian.Uint64(h[:]) }

// Hooks returns the sampled ids of a multichunk: those that everybody would choose, of a group that has none the least, so
// that half a megabyte of data is found by one however large its chunks are, and more of the least where these are few: most
// multichunks are small, each with what has changed a little later.
func Hooks(table []TableEntry) []ID { return chooseHooks(table, HookShare, leastHooks) }

// chooseHooks returns one of share ids, at least one of each group and at least so many in all.
func chooseHooks(table []TableEntry, share, least int) []ID {
	chosen := make([]bool, len(table))
	n := 0
	choose := func(i int) {
		if !chosen[i] {
			chosen[i] = true
			n++
		}
	}
	for start := 0; start < len(table); {
		low, end, before := start, start, n
		for ; end < len(table) && table[end].Hint == table[start].Hint; end++ {
			id := &table[end].ID
			if int(id[len(id)-1])%share == 0 {
				choose(end)
			}
			if bytes.Compare(id[:], table[low].ID[:]) < 0 {
				low = end
			}
		}
		if n == before {
			choose(low)
		}
		start = end
	}
	if n < min(least, len(table)) {
		order := make([]int, len(table))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(i, j int) int { return bytes.Compare(table[i].ID[:], table[j].ID[:]) })
		for _, i := range order {
			if n < least {
				choose(i)
			}
		}
	}
	list := make([]ID, 0, n)
	for i := range table {
		if chosen[i] {
			list = append(list, table[i].ID)
		}
	}
	return list
}

// HookedMultichunk is what is announced of a multichunk of chunks.
type HookedMultichunk struct {
	Name  Name
	Hooks []Hook
}

// hooked returns what a commit announces of data multichunks.
func (c *Commit) hooked() []HookedMultichunk {
	var list []HookedMultichunk
	for i := range c.Multichunks {
		m := &c.Multichunks[i]
		if m.Kind != KindData {
			continue
		}
		h := HookedMultichunk{Name: m.Name, Hooks: make([]Hook, len(m.Hooks))}
		for j, id := range m.Hooks {
			h.Hooks[j] = HookOf(id)
		}
		list = append(list, h)
	}
	return list
}

// hookFilter is a blocked Bloom filter: all bits of a hook lie in one cache line. Hooks are random already, so that they are
// mixed and not hashed. At filterBits bits a hook about one of a hundred is taken for another. It may be asked and added to
// by several at once.
type hookFilter struct {
	words []atomic.Uint64 // in blocks of filterBlock
}

const (
	filterBlock = 8  // words of 64 bits
	filterBits  = 12 // bits for each hook
	filterTests = 6  // bits that a hook sets
)

// newHookFilter returns a filter for n hooks.
func newHookFilter(n int) *hookFilter {
	blocks := max(1, (n*filterBits+64*filterBlock-1)/(64*filterBlock))
	return &hookFilter{make([]atomic.Uint64, blocks*filterBlock)}
}

// capacity returns for how many hooks f was made.
func (f *hookFilter) capacity() int { return len(f.words) * 64 / filterBits }

// place returns the block of a hook, and bits to choose from.
func (f *hookFilter) place(h Hook) (block []atomic.Uint64, choice uint64) {
	x := h.uint64() * 0x9e3779b97f4a7c15
	x ^= x >> 32
	hi, _ := bits.Mul64(x*0xd6e8feb86659fd93, uint64(len(f.words)/filterBlock))
	return f.words[hi*filterBlock:][:filterBlock], x * 0xa0761d6478bd642f
}

func (f *hookFilter) add(h Hook) {
	block, choice := f.place(h)
	for range filterTests {
		bit := choice >> (64 - 9)
		block[bit/64].Or(1 << (bit % 64))
		choice = choice<<9 | choice>>(64-9)
	}
}

func (f *hookFilter) has(h Hook) bool {
	block, choice := f.place(h)
	for range filterTests {
		bit := choice >> (64 - 9)
		if block[bit/64].Load()&(1<<(bit%64)) == 0 {
			return false
		}
		choice = choice<<9 | choice>>(64-9)
	}
	return true
}
