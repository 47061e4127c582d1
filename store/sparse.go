package store

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// Deduplication without an index of everything, after Lillibridge et al., Sparse Indexing (FAST 2009), and Bhagwat et al., Extreme
// Binning (MASCOTS 2009): of each multichunk a few chunk ids are known, its hooks. A chunk that is one of them says that its
// neighbours are likely to lie where it lies, and brings in the table of that multichunk, the champion.

// HookShare is of how many chunks one is a hook, on average.
const HookShare = 64

// A Hook is a sampled chunk id, of which the first bytes are enough: a wrong one costs reading a table in vain.
type Hook [8]byte

// HookOf returns the hook that a chunk would be.
func HookOf(id ID) Hook { return Hook(id[:len(Hook{})]) }

func (h Hook) uint64() uint64 { return binary.BigEndian.Uint64(h[:]) }

// Hooks returns the sampled ids of a multichunk: those that everybody would choose, and of a group that has none the least, so
// that half a megabyte of data is found by one however large its chunks are.
func Hooks(table []TableEntry) []ID { return hooksAt(table, HookShare) }

func hooksAt(table []TableEntry, share int) []ID {
	var list []ID
	for len(table) > 0 {
		least, n, sampled := 0, 0, len(list)
		for ; n < len(table) && table[n].Hint == table[0].Hint; n++ {
			id := &table[n].ID
			if int(id[len(id)-1])%share == 0 {
				list = append(list, *id)
			}
			if string(id[:]) < string(table[least].ID[:]) {
				least = n
			}
		}
		if len(list) == sampled {
			list = append(list, table[least].ID)
		}
		table = table[n:]
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
