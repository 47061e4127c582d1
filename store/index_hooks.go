package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

var (
	indexHookPrefix = []byte("ih")
	indexNamePrefix = []byte("in")
	indexShareKey   = []byte("ir")
)

func hookKey(h Hook) []byte { return append([]byte("ih"), h[:]...) }

func learnedKey(c chain) []byte {
	return append(append([]byte("iv"), c.client[:]...), c.incarnation[:]...)
}

const (
	minFilter = 1 << 14 // hooks for which the smallest filter is made
	maxShare  = 64      // of the hooks at least one of so many is kept
)

// readHookState reads which hooks are kept. x.writeMu is held.
func (x *Index) readHookState(txn *badger.Txn) error {
	share := byte(1)
	_, err := get(txn, indexShareKey, func(v []byte) error {
		d := decoder{b: v}
		share, x.hooks = d.byte(), d.uint64()
		if d.bad || share == 0 || share&(share-1) != 0 || share > maxShare {
			return corruptf("index: share of hooks")
		}
		return nil
	})
	x.share.Store(uint32(share))
	return err
}

func (x *Index) appendShare(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(append(dst, byte(x.share.Load())), x.hooks)
}

// keeps reports whether a hook belongs to the share that is kept.
func (x *Index) keeps(h Hook) bool { return uint32(h[len(h)-1])&(x.share.Load()-1) == 0 }

// Load builds the filter of hooks. Before, Champion asks the database, and Sparse says that hooks may be there.
func (x *Index) Load(ctx context.Context) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	if err := x.load(ctx); err != nil {
		return fmt.Errorf("load the hooks of the index: %w", err)
	}
	return nil
}

func (x *Index) load(ctx context.Context) error {
	if x.filter.Load() != nil {
		return nil
	}
	if err := x.readState(); err != nil {
		return err
	}
	unread := int64(0)
	err := x.each(ctx, indexNamePrefix, true, func(_, v []byte) error {
		if len(v) == 5 && v[4] == tableHooked {
			unread++
		}
		return nil
	})
	if err != nil {
		return err
	}
	x.unread.Store(unread)
	return x.buildFilter(ctx, int(x.hooks))
}

// Expect says that about n hooks are going to be added. If the filter will not have room for them, the share that is kept is
// halved now, and not when they are there: what would be dropped again is not written.
func (x *Index) Expect(ctx context.Context, n uint64) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	if err := x.expect(ctx, n); err != nil {
		return fmt.Errorf("make room for hooks in the index: %w", err)
	}
	return nil
}

func (x *Index) expect(ctx context.Context, n uint64) error {
	if err := x.load(ctx); err != nil {
		return err
	}
	had, share := x.hooks, uint64(x.share.Load())
	will := had + n/share
	for most := uint64(x.filterBytes * 8 / filterBits); will > most && x.thin(); {
		will /= 2
	}
	if x.share.Load() == uint32(share) {
		return nil
	}
	if err := x.buildFilter(ctx, int(will)); err != nil || had == 0 {
		return err
	}
	return x.dropThinned(ctx)
}

// buildFilter makes a filter of all hooks with room for about n. If they are more than it may ever hold, the share that is kept
// is halved until they are not.
func (x *Index) buildFilter(ctx context.Context, n int) error {
	most := x.filterBytes * 8 / filterBits
	for {
		size := minFilter
		for size < n+n/4 && size < most {
			size *= 2
		}
		size = min(size, most)
		if old := x.filter.Load(); old != nil && old.capacity()+size > most {
			x.filter.Store(nil) // both would take too much; until the new one is there the database is asked
		}
		f := newHookFilter(size)
		count := uint64(0)
		err := x.each(ctx, indexHookPrefix, false, func(key, _ []byte) error {
			if h := Hook(key[2:]); x.keeps(h) {
				f.add(h)
				count++
			}
			return nil
		})
		if err != nil {
			return err
		}
		x.hooks = count
		if n = int(count); n <= f.capacity() {
			x.filter.Store(f)
			return x.batch(func(wb *badger.WriteBatch) error { return wb.Set(indexShareKey, x.appendShare(nil)) })
		}
		if f.capacity() >= most && !x.thin() {
			x.filter.Store(f) // fuller than it should be: more hooks are taken for others, which costs time
			return nil
		}
	}
}

// thin halves the share of hooks that is kept. It reports false if that cannot be done any more. What is not kept stays on
// disk, where nobody asks for it, until dropThinned.
func (x *Index) thin() bool {
	share := x.share.Load()
	if share >= maxShare {
		return false
	}
	x.share.Store(2 * share)
	return true
}

// dropThinned deletes the hooks that are not kept.
func (x *Index) dropThinned(ctx context.Context) error {
	return x.batch(func(wb *badger.WriteBatch) error {
		return x.each(ctx, indexHookPrefix, false, func(key, _ []byte) error {
			if x.keeps(Hook(key[2:])) {
				return nil
			}
			return wb.Delete(append([]byte(nil), key...))
		})
	})
}

// each calls fn with all keys that begin with prefix, and with their values if these are wanted. What fn is given is its own
// only until it returns.
func (x *Index) each(ctx context.Context, prefix []byte, values bool, fn func(key, value []byte) error) error {
	return x.db.View(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.Prefix, o.PrefetchValues = prefix, false
		it := txn.NewIterator(o)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			item := it.Item()
			var err error
			if values {
				err = item.Value(func(v []byte) error { return fn(item.Key(), v) })
			} else {
				err = fn(item.Key(), nil)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// setHooks puts the hooks of a multichunk into a batch, as far as they are kept, and into the filter. The filter goes last: who
// finds a hook there too early finds nothing in the database.
func (x *Index) setHooks(wb *badger.WriteBatch, number uint32, hooks []Hook) error {
	value := binary.BigEndian.AppendUint32(nil, number)
	f := x.filter.Load()
	for _, h := range hooks {
		if !x.keeps(h) {
			continue
		}
		if err := wb.Set(hookKey(h), value); err != nil {
			return err
		}
		x.hooks++
		if f != nil {
			f.add(h)
		}
	}
	return nil
}

// deleteHook deletes a hook if it leads to number. The filter goes on saying that it may be there.
func (x *Index) deleteHook(txn *badger.Txn, wb *badger.WriteBatch, h Hook, number uint32) error {
	if f := x.filter.Load(); f != nil && !f.has(h) {
		return nil
	}
	here := false
	_, err := get(txn, hookKey(h), func(v []byte) error {
		d := decoder{b: v}
		here = d.uint32() == number
		return nil
	})
	if err != nil || !here {
		return err
	}
	return wb.Delete(hookKey(h))
}

// hookBatch is how many multichunks are added at a time.
const hookBatch = 4096

// AddHooks makes hooks of multichunks known whose tables are not. It adds none for what is lost.
func (x *Index) AddHooks(ctx context.Context, list []HookedMultichunk) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	if err := x.load(ctx); err != nil {
		return fmt.Errorf("add hooks to the index: %w", err)
	}
	for len(list) > 0 {
		n := min(len(list), hookBatch)
		if err := x.addHooks(list[:n]); err != nil {
			return fmt.Errorf("add hooks to the index: %w", err)
		}
		list = list[n:]
		if f := x.filter.Load(); int(x.hooks) > f.capacity() {
			before := x.share.Load()
			if err := x.buildFilter(ctx, 2*int(x.hooks)); err != nil {
				return fmt.Errorf("add hooks to the index: %w", err)
			}
			if x.share.Load() > before {
				if err := x.dropThinned(ctx); err != nil {
					return fmt.Errorf("drop hooks of the index: %w", err)
				}
			}
		}
	}
	return nil
}

func (x *Index) addHooks(list []HookedMultichunk) error {
	fresh, err := x.unnamed(list)
	if err != nil || len(fresh) == 0 {
		return err
	}
	numbers := make([]uint32, len(fresh))
	for i := range fresh {
		numbers[i] = x.draw()
	}
	leads := x.leads(fresh, numbers)
	err = x.batch(func(wb *badger.WriteBatch) error {
		if err := wb.Set(indexNextKey, x.appendNext(nil)); err != nil {
			return err
		}
		for i, m := range fresh {
			if err := wb.Set(numberKey(numbers[i]), append([]byte(nil), m.Name[:]...)); err != nil {
				return err
			}
		}
		for _, l := range leads {
			if err := x.setHooks(wb, l.number, []Hook{l.hook}); err != nil {
				return err
			}
		}
		return wb.Set(indexShareKey, x.appendShare(nil))
	})
	if err != nil {
		return err
	}
	// That they are there goes last: otherwise a machine that stops before would never add them again.
	err = x.batch(func(wb *badger.WriteBatch) error {
		for i, m := range fresh {
			if err := wb.Set(nameKey(m.Name), appendState(numbers[i], tableHooked)); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		x.unread.Add(int64(len(fresh)))
	}
	return err
}

// A lead is a hook and the multichunk that it leads to.
type lead struct {
	hook   Hook
	number uint32
}

// leads returns the hooks of multichunks that are kept, in their order: so the database has the least to sort.
func (x *Index) leads(list []HookedMultichunk, numbers []uint32) (leads []lead) {
	n := 0
	for i := range list {
		n += len(list[i].Hooks)
	}
	leads = make([]lead, 0, n/int(x.share.Load())*9/8)
	for i := range list {
		for _, h := range list[i].Hooks {
			if x.keeps(h) {
				leads = append(leads, lead{h, numbers[i]})
			}
		}
	}
	slices.SortFunc(leads, func(a, b lead) int { return bytes.Compare(a.hook[:], b.hook[:]) })
	return leads
}

// unnamed returns the multichunks of list of which nothing is known, each once.
func (x *Index) unnamed(list []HookedMultichunk) (fresh []HookedMultichunk, err error) {
	seen := make(map[Name]bool, len(list))
	err = x.db.View(func(txn *badger.Txn) error {
		for _, m := range list {
			number, _, err := getNumber(txn, m.Name)
			if err != nil {
				return err
			}
			lost, err := get(txn, lostKey(m.Name), nil)
			if err != nil {
				return err
			}
			if number == 0 && !lost && !seen[m.Name] {
				seen[m.Name] = true
				fresh = append(fresh, m)
			}
		}
		return nil
	})
	return fresh, err
}

func listKey(id hookListID) []byte { return append([]byte("iw"), id[:]...) }

// list returns a hook list, without its hooks, that has been put into the index; nil if it has not.
func (x *Index) list(id hookListID) (l *hookList, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		_, err := get(txn, listKey(id), func(v []byte) (err error) {
			l, err = parseHookList(bytes.Clone(v))
			return err
		})
		return err
	})
	if l != nil {
		l.id = id
	}
	return l, err
}

// setList notes that a hook list is in the index.
func (x *Index) setList(l *hookList) error {
	value := appendHookList(nil, &hookList{covers: l.covers, contains: l.contains})
	return x.batch(func(wb *badger.WriteBatch) error { return wb.Set(listKey(l.id), value) })
}

// Sparse reports whether there may be multichunks of which hooks alone are known: what Has does not find may be found after
// the table of its Champion has been added.
func (x *Index) Sparse() bool { return x.filter.Load() == nil || x.unread.Load() > 0 }

// Champion returns the multichunk that a hook says the chunk named id lies in, if its table is not there. It is meant for
// chunks that Has does not find.
func (x *Index) Champion(id ID) (n Name, found bool, err error) {
	h := HookOf(id)
	if f := x.filter.Load(); f != nil && !(x.keeps(h) && f.has(h)) {
		return Name{}, false, nil
	}
	err = x.db.View(func(txn *badger.Txn) error {
		number := uint32(0)
		_, err := get(txn, hookKey(h), func(v []byte) error {
			d := decoder{b: v}
			number = d.uint32()
			return nil
		})
		if err != nil || number == 0 {
			return err
		}
		if n, found, err = x.name(txn, number); err != nil || !found {
			return err
		}
		number, state, err := getNumber(txn, n)
		found = number != 0 && state != tableKnown
		return err
	})
	return n, found && err == nil, err
}

// Chunks returns how many chunks the tables in the index list, about.
func (x *Index) Chunks() (uint64, error) {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	err := x.readState()
	return x.count, err
}

// Trim gives up tables, the first that were added first, until they list at most the given number of chunks. What is left of
// each is its hooks, by which it is found again. Keep says which tables must stay.
func (x *Index) Trim(ctx context.Context, chunks uint64, keep func(Name) bool) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := x.trimOne(chunks, keep); err != nil {
			return fmt.Errorf("trim the index: %w", err)
		} else if !more {
			return nil
		}
	}
}

// trimOne gives up one table. It reports false if there is none to give up, or no need.
func (x *Index) trimOne(chunks uint64, keep func(Name) bool) (bool, error) {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	if err := x.readState(); err != nil || x.count <= chunks {
		return false, err
	}
	n, number, err := x.oldest(keep)
	if err != nil || number == 0 {
		return false, err
	}
	if _, _, err := x.giveUp(n, false); err != nil {
		return false, err
	}
	x.unread.Add(1)
	return true, x.setState(n, number, tableHooked)
}

// oldest returns the table with the smallest number that may be given up, 0 if there is none.
func (x *Index) oldest(keep func(Name) bool) (n Name, number uint32, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.Prefix, o.PrefetchValues = []byte("im"), false
		it := txn.NewIterator(o)
		defer it.Close()
		for it.Seek(numberKey(x.trimmed + 1)); it.Valid(); it.Next() {
			at := binary.BigEndian.Uint32(it.Item().Key()[2:])
			err := it.Item().Value(func(v []byte) error { copy(n[:], v); return nil })
			if err != nil {
				return err
			}
			own, state, err := getNumber(txn, n)
			if err != nil {
				return err
			}
			if own == at && state == tableKnown && !keep(n) {
				number = at
				return nil
			}
			if own != at || state != tableKnown {
				x.trimmed = at
			}
		}
		return nil
	})
	return n, number, err
}

// learned returns the commits of a chain whose announcements are in the index.
func (x *Index) learned(c chain) (spans seqSpans, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		_, err := get(txn, learnedKey(c), func(v []byte) error {
			d := decoder{b: v}
			spans = d.spans()
			if d.bad {
				return corruptf("index: commits of %s", c.client.short())
			}
			return nil
		})
		return err
	})
	return spans, err
}

// setLearned notes that the announcements of more commits of a chain are in the index.
func (x *Index) setLearned(c chain, more seqSpans) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	spans, err := x.learned(c)
	if err != nil {
		return err
	}
	value := appendSpans(nil, spans.union(more))
	return x.batch(func(wb *badger.WriteBatch) error { return wb.Set(learnedKey(c), value) })
}
