package cache

import (
	"cmp"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// copies are of small objects that lie on the remote, in the database, for repair.
type copies struct {
	mu     sync.Mutex // guards what follows
	seen   map[string]bool
	closed bool
}

// copiesKept is how many copies are kept: when there are more, the half that was kept first goes. One takes 4 KiB.
const copiesKept = 8192

// keepObject keeps a copy of an object.
func (c *Cache) keepObject(name string, wire []byte) {
	c.copies.mu.Lock()
	defer c.copies.mu.Unlock()
	if c.copies.closed {
		return
	}
	if c.copies.seen == nil {
		c.copies.seen = map[string]bool{}
		for _, name := range c.SpareObjects() {
			c.copies.seen[name] = true
		}
	}
	if c.copies.seen[name] || !c.dbPut(func(set func(key, value []byte)) { set(copyKey(name), wire) }) {
		return
	}
	c.copies.seen[name] = true
	if len(c.copies.seen) > copiesKept {
		c.dropCopies()
	}
}

// stopCopies has no more copies kept.
func (c *Cache) stopCopies() {
	c.repo.KeepCopies(nil)
	c.copies.mu.Lock()
	defer c.copies.mu.Unlock()
	c.copies.closed = true
}

func copyKey(name string) []byte { return append([]byte{keyCopy}, name...) }

// dropCopies drops the half that was kept first. c.copies.mu is held.
func (c *Cache) dropCopies() {
	type kept struct {
		name    string
		version uint64
	}
	var all []kept
	c.eachCopy(func(name string, version uint64) { all = append(all, kept{name, version}) })
	slices.SortFunc(all, func(a, b kept) int { return cmp.Compare(a.version, b.version) })
	wb := c.db.NewWriteBatch()
	defer wb.Cancel()
	for _, k := range all[:len(all)/2] {
		if wb.Delete(copyKey(k.name)) != nil {
			return
		}
		delete(c.copies.seen, k.name)
	}
	_ = wb.Flush() // what stays is dropped another time
}

// eachCopy calls fn for each copy, with a number that is larger the later it was kept.
func (c *Cache) eachCopy(fn func(name string, version uint64)) {
	if c.db == nil {
		return
	}
	_ = c.db.View(func(txn *badger.Txn) error { // what cannot be read is not there
		o := badger.DefaultIteratorOptions
		o.Prefix, o.PrefetchValues = []byte{keyCopy}, false
		it := txn.NewIterator(o)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			fn(string(it.Item().Key()[1:]), it.Item().Version())
		}
		return nil
	})
}

// SpareObject returns a copy of a small object that this machine has read or put. It has not been checked.
func (c *Cache) SpareObject(name string) (wire []byte) {
	c.dbGet(copyKey(name), func(b []byte) error {
		wire = append(wire, b...)
		return nil
	})
	return wire
}

// SpareObjects returns the names of all objects of which there are copies.
func (c *Cache) SpareObjects() (names []string) {
	c.eachCopy(func(name string, _ uint64) { names = append(names, name) })
	return names
}
