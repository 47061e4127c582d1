package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
)

// An Index knows where chunks lie, by the tables of multichunks that it has been told of. What it says is a hint: it can be
// deleted at any time and built anew by adding all tables again. It owns the keys of its database that begin with 'i':
//
//	i c id(16)            number, offset and length of the group, as uvarints
//	i n name(16)          number(4) state(1)
//	i m number(4)         name(16)
//	i t number(4) part(4) ids(16 each) of all chunks of the multichunk
//	i l name(16)          nothing; the multichunk is lost (heal.go)
//	i #                   next number(4) chunks in tables(8)
//	i h hook(8)           number(4)
//	i r                   of how many hooks one is kept(1) their number(8)
//	i v client incarnation  numbers of the commits whose announcements are in
//	i w id(16)            a hook list that is in, without its hooks
//
// Numbers stand for multichunks because a name is longer than all the rest of a value. Of an id the first 16 bytes do: no
// two chunks share them by chance, and without the key nobody can make two that do.
//
// Of a multichunk the Index knows the table, exactly, or hooks alone: see Champion. Tables may be given up for hooks again, so
// that what the Index takes on disk is bounded; in memory it has a filter of the hooks, which is bounded as well.
//
// An Index is safe for concurrent use.
type Index struct {
	db          *badger.DB
	filterBytes int // most that the filter may take

	writeMu sync.Mutex // held while tables or hooks are added or forgotten; guards what follows
	next    uint32     // number of the next multichunk; 0 if it has not been read
	count   uint64     // chunks in tables, about
	hooks   uint64     // about
	trimmed uint32     // number up to which there is no table to give up

	filter atomic.Pointer[hookFilter] // nil until Load
	share  atomic.Uint32              // of how many hooks one is kept; 0 until Load
	unread atomic.Int64               // multichunks of which hooks alone are known
	added  atomic.Uint64              // how many tables have been added, ever

	mu    sync.Mutex // guards names
	names map[uint32]Name
}

// IndexOptions are options of NewIndex. Nil is the defaults.
type IndexOptions struct {
	Memory int64 // of the filter of hooks, bytes; default 64 MiB
}

const (
	indexIDSize    = 16
	indexPartIDs   = 1024 // ids in one value, so that transactions stay small
	indexNamesHeld = 4096 // names of multichunks that are kept in memory

	tableAdding = 0 // states of a table: some of it may be there
	tableKnown  = 1 // all of it is there
	tableHooked = 2 // none of it is there, but hooks
)

var indexNextKey = []byte("i#")

// NewIndex returns the index that is kept in db.
func NewIndex(db *badger.DB, o *IndexOptions) *Index {
	memory := int64(64 << 20)
	if o != nil && o.Memory > 0 {
		memory = o.Memory
	}
	return &Index{db: db, filterBytes: int(memory), names: map[uint32]Name{}}
}

func chunkKey(id ID) []byte { return append([]byte("ic"), id[:indexIDSize]...) }

func nameKey(n Name) []byte { return append([]byte("in"), n[:]...) }

func numberKey(number uint32) []byte { return binary.BigEndian.AppendUint32([]byte("im"), number) }

func partPrefix(number uint32) []byte { return binary.BigEndian.AppendUint32([]byte("it"), number) }

func partKey(number uint32, part int) []byte {
	return binary.BigEndian.AppendUint32(partPrefix(number), uint32(part))
}

// place is the value of a chunk.
type place struct {
	number   uint32
	off, len uint32
}

func appendPlace(dst []byte, p place) []byte {
	dst = binary.AppendUvarint(dst, uint64(p.number))
	dst = binary.AppendUvarint(dst, uint64(p.off))
	return binary.AppendUvarint(dst, uint64(p.len))
}

func parsePlace(b []byte) (p place, err error) {
	d := decoder{b: b}
	const max = 1<<32 - 1
	p.number, p.off, p.len = uint32(d.uvarint(max)), uint32(d.uvarint(max)), uint32(d.uvarint(max))
	if d.bad || len(d.b) > 0 {
		return place{}, corruptf("index entry")
	}
	return p, nil
}

// Has reports whether the index knows a place of the chunk named id.
func (x *Index) Has(id ID) (bool, error) {
	found := false
	err := x.db.View(func(txn *badger.Txn) error {
		var err error
		found, err = get(txn, chunkKey(id), nil)
		return err
	})
	return found, err
}

// Get returns where the chunk named id was last known to lie, and whether that is known.
func (x *Index) Get(id ID) (h Hint, found bool, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		var p place
		found, err = getPlace(txn, id, &p)
		if err != nil || !found {
			return err
		}
		h.Off, h.Len = p.off, p.len
		h.Multichunk, found, err = x.name(txn, p.number)
		return err
	})
	if err != nil || !found {
		return Hint{}, false, err
	}
	return h, true, nil
}

// Known reports whether the whole table of multichunk n has been added and not been forgotten, or need not be: it is lost.
func (x *Index) Known(n Name) (known bool, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		_, state, err := getNumber(txn, n)
		if known = state == tableKnown; err != nil || known {
			return err
		}
		known, err = get(txn, lostKey(n), nil)
		return err
	})
	return known, err
}

// Added returns a number that is larger when tables have been added since: what was not found then may be found now.
func (x *Index) Added() uint64 { return x.added.Load() }

// AddTable makes the chunks of multichunk n known, whose table entries is. If it is broken off, or done twice, adding the
// table again makes it whole. What is added may be lost with the power of the machine, but not in part unnoticed. Nothing is
// added of a multichunk that is lost.
func (x *Index) AddTable(n Name, entries []TableEntry) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	lost, err := x.Lost(n)
	if err == nil && !lost {
		err = x.addTable(n, entries)
	}
	if err != nil {
		return fmt.Errorf("index multichunk %v: %w", n, err)
	}
	return nil
}

func (x *Index) addTable(n Name, entries []TableEntry) error {
	if err := x.readState(); err != nil {
		return err
	}
	number, state, err := x.begin(n)
	if err != nil {
		return err
	}
	// The list of ids goes first: whatever of the rest is there when the machine stops can be forgotten by it.
	err = x.batch(func(wb *badger.WriteBatch) error { return setParts(wb, number, entries) })
	if err != nil {
		return err
	}
	err = x.batch(func(wb *badger.WriteBatch) error {
		for i := range entries {
			p := place{number: number, off: entries[i].Hint.Off, len: entries[i].Hint.Len}
			if err := wb.Set(chunkKey(entries[i].ID), appendPlace(nil, p)); err != nil {
				return err
			}
		}
		return x.setHooks(wb, number, hooksOf(entries))
	})
	if err != nil {
		return err
	}
	if state != tableKnown {
		x.count += uint64(len(entries))
	}
	if state == tableHooked {
		x.unread.Add(-1)
	}
	if err := x.setState(n, number, tableKnown); err != nil {
		return err
	}
	x.added.Add(1)
	return nil
}

// hooksOf returns the hooks of a multichunk with a table.
func hooksOf(entries []TableEntry) []Hook {
	ids := Hooks(entries)
	hooks := make([]Hook, len(ids))
	for i, id := range ids {
		hooks[i] = HookOf(id)
	}
	return hooks
}

// readState reads how far the index is, once. x.writeMu is held.
func (x *Index) readState() error {
	if x.next != 0 {
		return nil
	}
	return x.db.View(func(txn *badger.Txn) error {
		next := uint32(1)
		_, err := get(txn, indexNextKey, func(v []byte) error {
			d := decoder{b: v}
			next = max(1, d.uint32())
			if len(d.b) > 0 {
				x.count = d.uint64()
			}
			return nil
		})
		if err == nil {
			err = x.readHookState(txn)
		}
		if err == nil {
			x.next = next
		}
		return err
	})
}

// begin returns the number of multichunk n, whose table is going to be changed, and the state that it was in. It draws a
// number if n has none.
func (x *Index) begin(n Name) (number uint32, state byte, err error) {
	err = x.db.Update(func(txn *badger.Txn) error {
		var err error
		if number, state, err = getNumber(txn, n); err != nil {
			return err
		}
		if number == 0 {
			number = x.draw()
			if err := errors.Join(txn.Set(indexNextKey, x.appendNext(nil)), txn.Set(numberKey(number), n[:])); err != nil {
				return err
			}
		}
		return txn.Set(nameKey(n), appendState(number, tableAdding))
	})
	return number, state, err
}

// draw returns a number that has never been used; the first is 1. What appendNext appends must be stored with it.
func (x *Index) draw() uint32 {
	x.next++
	return x.next - 1
}

func (x *Index) appendNext(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(dst, x.next), x.count)
}

func appendState(number uint32, state byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, number), state)
}

// setState stores the state of a table, and how many chunks there are in all.
func (x *Index) setState(n Name, number uint32, state byte) error {
	return x.db.Update(func(txn *badger.Txn) error {
		return errors.Join(txn.Set(nameKey(n), appendState(number, state)), txn.Set(indexNextKey, x.appendNext(nil)))
	})
}

// setParts stores the ids of entries under number.
func setParts(wb *badger.WriteBatch, number uint32, entries []TableEntry) error {
	for part := 0; len(entries) > 0; part++ {
		n := min(len(entries), indexPartIDs)
		ids := make([]byte, 0, n*indexIDSize)
		for i := range entries[:n] {
			ids = append(ids, entries[i].ID[:indexIDSize]...)
		}
		if err := wb.Set(partKey(number, part), ids); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// Forget makes all chunks of multichunk n unknown that are not known to lie elsewhere, and syncs: afterwards nothing is
// found there, whatever happens to the machine. Only the last known place of a chunk is kept, so that one of which the same
// chunk was known earlier, or is in a table that is added again, may have to be found anew.
func (x *Index) Forget(n Name) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	err := x.forget(n)
	if err == nil {
		err = x.db.Sync()
	}
	if err != nil {
		return fmt.Errorf("forget multichunk %v: %w", n, err)
	}
	return nil
}

func (x *Index) forget(n Name) error {
	number, state, err := x.giveUp(n, true)
	if err != nil || number == 0 {
		return err
	}
	if state == tableHooked {
		x.unread.Add(-1) // its hooks stay, and lead nowhere
	}
	err = x.batch(func(wb *badger.WriteBatch) error {
		return errors.Join(wb.Delete(numberKey(number)), wb.Delete(nameKey(n)))
	})
	x.mu.Lock()
	delete(x.names, number)
	x.mu.Unlock()
	return err
}

// giveUp makes the table of multichunk n unknown, and if that is wanted its hooks. It is left in the state of adding unless none of
// it was there. GiveUp returns the number of n, 0 if it has none, and the state that it was in.
func (x *Index) giveUp(n Name, hooks bool) (number uint32, state byte, err error) {
	if err := x.readState(); err != nil {
		return 0, 0, err
	}
	err = x.db.View(func(txn *badger.Txn) (err error) {
		number, state, err = getNumber(txn, n)
		return err
	})
	if err != nil || number == 0 || state == tableHooked {
		return number, state, err
	}
	if err := x.setState(n, number, tableAdding); err != nil {
		return 0, 0, err
	}
	ids := uint64(0)
	if err := x.batch(func(wb *badger.WriteBatch) (err error) { ids, err = x.deleteChunks(wb, number, hooks); return err }); err != nil {
		return 0, 0, err
	}
	if state == tableKnown {
		x.count -= min(x.count, ids)
	}
	// The list goes last: a machine that stops before can still forget by it.
	return number, state, x.batch(func(wb *badger.WriteBatch) error { return x.deleteParts(wb, number) })
}

// deleteChunks deletes the chunks that are listed under number and known to lie there, and hooks that lead there if that is wanted.
// It returns how many are listed.
func (x *Index) deleteChunks(wb *badger.WriteBatch, number uint32, hooks bool) (listed uint64, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		return eachPart(txn, number, func(_, ids []byte) error {
			listed += uint64(len(ids) / indexIDSize)
			for ; len(ids) >= indexIDSize; ids = ids[indexIDSize:] {
				var id ID
				copy(id[:], ids[:indexIDSize])
				if hooks {
					if err := x.deleteHook(txn, wb, HookOf(id), number); err != nil {
						return err
					}
				}
				var p place
				found, err := getPlace(txn, id, &p)
				if err != nil {
					return err
				}
				if !found || p.number != number {
					continue
				}
				if err := wb.Delete(chunkKey(id)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return listed, err
}

func (x *Index) deleteParts(wb *badger.WriteBatch, number uint32) error {
	return x.db.View(func(txn *badger.Txn) error {
		return eachPart(txn, number, func(key, _ []byte) error { return wb.Delete(key) })
	})
}

// eachPart calls fn with the key and value of every part of the list of number. The key is fn's to keep.
func eachPart(txn *badger.Txn, number uint32, fn func(key, ids []byte) error) error {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchSize = partPrefix(number), 1
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		key := it.Item().KeyCopy(nil)
		if err := it.Item().Value(func(v []byte) error { return fn(key, v) }); err != nil {
			return err
		}
	}
	return nil
}

// name returns the name of multichunk number, and whether there is one.
func (x *Index) name(txn *badger.Txn, number uint32) (n Name, found bool, err error) {
	x.mu.Lock()
	n, found = x.names[number]
	x.mu.Unlock()
	if found {
		return n, true, nil
	}
	found, err = get(txn, numberKey(number), func(v []byte) error {
		if copy(n[:], v) != len(n) {
			return corruptf("index: name of multichunk %d", number)
		}
		return nil
	})
	if err != nil || !found {
		return Name{}, false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.names) >= indexNamesHeld {
		clear(x.names)
	}
	x.names[number] = n
	return n, true, nil
}

// getNumber returns the number of multichunk n, 0 if it has none, and the state of its table.
func getNumber(txn *badger.Txn, n Name) (number uint32, state byte, err error) {
	_, err = get(txn, nameKey(n), func(v []byte) error {
		d := decoder{b: v}
		number, state = d.uint32(), d.byte()
		if d.bad {
			return corruptf("index: state of multichunk %v", n)
		}
		return nil
	})
	return number, state, err
}

func getPlace(txn *badger.Txn, id ID, p *place) (found bool, err error) {
	return get(txn, chunkKey(id), func(v []byte) error {
		*p, err = parsePlace(v)
		return err
	})
}

// get calls fn, unless it is nil, with the value of key, and reports whether there is one.
func get(txn *badger.Txn, key []byte, fn func([]byte) error) (bool, error) {
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if fn == nil {
		return true, nil
	}
	return true, item.Value(fn)
}

// batch writes what fn puts into a batch, in as many transactions as it takes, and waits for all.
func (x *Index) batch(fn func(*badger.WriteBatch) error) error {
	wb := x.db.NewWriteBatch()
	defer wb.Cancel()
	wb.SetMaxPendingTxns(2) // each takes a megabyte until it is written, and Badger's default is 16
	if err := fn(wb); err != nil {
		return err
	}
	return wb.Flush()
}
