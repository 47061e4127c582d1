package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/dedupfs/dedupfs/store"
)

// A receipt tells of a data multichunk that is verified on the remote: which chunks
// lie in it and where. It lasts before their places in the log are given up, because
// the database may be lost, and until a commit that announces it is on the remote and
// no local commit is left that may lack its hints.
type receipt struct {
	hooks     []store.ID
	announced bool
	needed    uint64 // once it is announced: the last local commit that may lack its hints
}

func receiptName(n store.Name) string { return "uploaded/" + n.String() }

// appendTable appends the entries of a multichunk's table.
func appendTable(dst []byte, table []store.TableEntry) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(table)))
	for i := range table {
		e := &table[i]
		dst = append(dst, e.ID[:]...)
		dst = binary.BigEndian.AppendUint32(dst, e.Len)
		dst = binary.BigEndian.AppendUint32(dst, e.Hint.Off)
		dst = binary.BigEndian.AppendUint32(dst, e.Hint.Len)
	}
	return dst
}

func parseTable(b []byte, n store.Name) ([]store.TableEntry, bool) {
	d := decoder{b: b}
	table := make([]store.TableEntry, d.count(44))
	for i := range table {
		table[i] = store.TableEntry{ID: d.id(), Len: d.uint32(), Hint: store.Hint{Multichunk: n, Off: d.uint32(), Len: d.uint32()}}
	}
	return table, d.done()
}

// writeReceipt makes the receipt of a multichunk last.
func (c *Cache) writeReceipt(n store.Name, table []store.TableEntry) error {
	b := appendSmallFile(nil, magicReceipt, appendTable(nil, table))
	err := c.retryFull(int64(len(b)), func() error { return writeFile(c.fsys, receiptName(n), b) })
	if err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	c.mu.Lock()
	c.receipts[n] = &receipt{hooks: store.Hooks(table)}
	c.mu.Unlock()
	return nil
}

// loadReceipts makes known what earlier processes have uploaded.
func (c *Cache) loadReceipts() error {
	list, err := c.fsys.List("uploaded")
	if err != nil {
		return err
	}
	for _, info := range list {
		n, ok := parseName(info.Name)
		if !ok {
			c.fsys.Remove("uploaded/" + info.Name) // not finished
			continue
		}
		table, err := c.readReceipt(n)
		if errors.Is(err, store.ErrCorrupt) {
			// The remote can tell it again.
			c.trouble(err)
			c.damaged = append(c.damaged, n)
			continue
		}
		if err != nil {
			return fmt.Errorf("read receipt: %w", err)
		}
		if err := c.loadTable(n, table); err != nil {
			return err
		}
		c.receipts[n] = &receipt{hooks: store.Hooks(table)}
	}
	return nil
}

// loadTable adds the table of a receipt to the index. Whether it may be deduplicated against is for the ledger to know.
func (c *Cache) loadTable(n store.Name, table []store.TableEntry) error {
	if err := c.dbRoom(); err != nil {
		return err
	}
	return c.index.AddTable(n, table)
}

func (c *Cache) readReceipt(n store.Name) ([]store.TableEntry, error) {
	b, err := readSmallFile(c.fsys, receiptName(n), magicReceipt, maxSmallFile)
	if err != nil {
		return nil, err
	}
	table, ok := parseTable(b, n)
	if !ok {
		return nil, corruptf("local file %s", receiptName(n))
	}
	return table, nil
}

// dropReceipts removes the receipts that nothing needs now that local commit n is published.
func (c *Cache) dropReceipts(n uint64) error {
	c.mu.Lock()
	var names []store.Name
	for name, r := range c.receipts {
		if r.announced && r.needed <= n {
			names = append(names, name)
		}
	}
	c.mu.Unlock()
	var errs error
	for _, n := range names {
		if err := c.fsys.Remove(receiptName(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, err)
			continue
		}
		c.mu.Lock()
		delete(c.receipts, n)
		c.mu.Unlock()
	}
	return errs
}
