package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

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
//	i #                   next number(4)
//
// Numbers stand for multichunks because a name is longer than all the rest of a value. Of an id the first 16 bytes do: no
// two chunks share them by chance, and without the key nobody can make two that do.
//
// An Index is safe for concurrent use.
type Index struct {
	db *badger.DB

	writeMu sync.Mutex // held while a table is added or forgotten

	mu    sync.Mutex // guards names
	names map[uint32]Name
}

const (
	indexIDSize    = 16
	indexPartIDs   = 1024 // ids in one value, so that transactions stay small
	indexNamesHeld = 4096 // names of multichunks that are kept in memory

	tableAdding = 0 // states of a table: some of it may be there
	tableKnown  = 1 // all of it is there
)

var indexNextKey = []byte("i#")

// NewIndex returns the index that is kept in db.
func NewIndex(db *badger.DB) *Index {
	return &Index{db: db, names: map[uint32]Name{}}
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
		if _, known, err = getNumber(txn, n); err != nil || known {
			return err
		}
		known, err = get(txn, lostKey(n), nil)
		return err
	})
	return known, err
}

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
	number, err := x.begin(n)
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
		return nil
	})
	if err != nil {
		return err
	}
	return x.setState(n, number, tableKnown)
}

// begin returns the number of multichunk n, whose table is going to be changed. It draws one if n has none.
func (x *Index) begin(n Name) (uint32, error) {
	number := uint32(0)
	err := x.db.Update(func(txn *badger.Txn) error {
		var err error
		if number, _, err = getNumber(txn, n); err != nil {
			return err
		}
		if number == 0 {
			if number, err = drawNumber(txn); err != nil {
				return err
			}
			if err := txn.Set(numberKey(number), n[:]); err != nil {
				return err
			}
		}
		return txn.Set(nameKey(n), appendState(number, tableAdding))
	})
	return number, err
}

// drawNumber returns a number that has never been used; the first is 1.
func drawNumber(txn *badger.Txn) (uint32, error) {
	number := uint32(1)
	_, err := get(txn, indexNextKey, func(v []byte) error {
		d := decoder{b: v}
		number = max(1, d.uint32())
		return nil
	})
	if err != nil {
		return 0, err
	}
	return number, txn.Set(indexNextKey, binary.BigEndian.AppendUint32(nil, number+1))
}

func appendState(number uint32, state byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, number), state)
}

func (x *Index) setState(n Name, number uint32, state byte) error {
	return x.db.Update(func(txn *badger.Txn) error {
		return txn.Set(nameKey(n), appendState(number, state))
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
	if err := x.forget(n); err != nil {
		return fmt.Errorf("forget multichunk %v: %w", n, err)
	}
	return nil
}

func (x *Index) forget(n Name) error {
	number := uint32(0)
	err := x.db.View(func(txn *badger.Txn) (err error) {
		number, _, err = getNumber(txn, n)
		return err
	})
	if err != nil || number == 0 {
		return err
	}
	if err := x.setState(n, number, tableAdding); err != nil {
		return err
	}
	if err := x.batch(func(wb *badger.WriteBatch) error { return x.deleteChunks(wb, number) }); err != nil {
		return err
	}
	// The list goes last: a machine that stops before can still forget by it.
	err = x.batch(func(wb *badger.WriteBatch) error {
		return errors.Join(x.deleteParts(wb, number), wb.Delete(numberKey(number)), wb.Delete(nameKey(n)))
	})
	if err != nil {
		return err
	}
	x.mu.Lock()
	delete(x.names, number)
	x.mu.Unlock()
	return x.db.Sync()
}

// deleteChunks deletes the chunks that are listed under number and known to lie there.
func (x *Index) deleteChunks(wb *badger.WriteBatch, number uint32) error {
	return x.db.View(func(txn *badger.Txn) error {
		return eachPart(txn, number, func(_, ids []byte) error {
			for ; len(ids) >= indexIDSize; ids = ids[indexIDSize:] {
				var id ID
				copy(id[:], ids[:indexIDSize])
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

// getNumber returns the number of multichunk n, 0 if it has none, and whether its table is whole.
func getNumber(txn *badger.Txn, n Name) (number uint32, known bool, err error) {
	_, err = get(txn, nameKey(n), func(v []byte) error {
		d := decoder{b: v}
		number, known = d.uint32(), d.byte() == tableKnown
		if d.bad {
			return corruptf("index: state of multichunk %v", n)
		}
		return nil
	})
	return number, known, err
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
	if err := fn(wb); err != nil {
		return err
	}
	return wb.Flush()
}
