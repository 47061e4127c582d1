package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Badger holds what can be rebuilt. Its keys begin with a letter each:
//
//	i...      chunk index, see store.Index
//	n id(32)  a published node, encoded with hints
//	h id(32)  hint of a node that this machine has published
//	p id(32)  place of a chunk in the log, as long as the segment is there
//	o name    a small object of the remote, as it lies there: see copies.go
//	a...      what the packages above remember
const (
	keyNode  = 'n'
	keyHint  = 'h'
	keyPlace = 'p'
	keyCopy  = 'o'
	keyAbove = 'a'
)

func dbKey(kind byte, id store.ID) []byte { return append([]byte{kind}, id[:]...) }

// dbOptions bound Badger's memory. What counts is what compacting takes: each of two compactions has up to eight tables in the
// making, of which each takes twice its size and 3 MiB for its index, as long as the disk takes to write it. So tables are small,
// levels grow by four and not by ten (then there are about five tables of a lower level for one of a higher), and what is in memory
// for level 0 is no larger than a table's buffer, which would grow for good. No more than three tables are ever in level 0: of
// four, Badger would make one, and take 256 MiB for that. The tables themselves are mapped (mapped.go); the caches hold what points into them.
func dbOptions(dir string, indexMemory int64) badger.Options {
	o := badger.DefaultOptions(dir).
		WithMemTableSize(1 << 20).
		WithBaseTableSize(512 << 10).
		WithNumMemtables(2).
		WithNumLevelZeroTables(2).
		WithNumLevelZeroTablesStall(3).
		WithBaseLevelSize(4 << 20).
		WithLevelSizeMultiplier(4).
		WithBlockCacheSize(max(indexMemory/12, 4<<20)).
		WithIndexCacheSize(max(indexMemory/6, 4<<20)).
		WithValueLogFileSize(16 << 20).
		WithValueThreshold(1 << 17).
		WithCompression(options.None).
		WithNumCompactors(2).
		WithNumGoroutines(2).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithLogger(dbLogger{})
	o.TableSizeMultiplier = 1 // or tables, and what compactions hold, grow with each level
	return o
}

// openDB opens the database in dir, in memory if dir is empty. One that cannot be
// opened is deleted and made anew.
func openDB(dir string, indexMemory int64) (*badger.DB, error) {
	if dir == "" {
		return badger.Open(dbOptions("", indexMemory).WithInMemory(true))
	}
	db, err := tryDB(dir, indexMemory)
	if err == nil {
		return db, nil
	}
	slog.Warn("local database is damaged and is built anew", "dir", dir, "err", err)
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("remove damaged local database: %w", err)
	}
	if db, err = tryDB(dir, indexMemory); err != nil {
		return nil, fmt.Errorf("open local database: %w", err)
	}
	return db, nil
}

// tryDB opens the database; a panic of Badger over damaged files is an error too.
func tryDB(dir string, indexMemory int64) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("local database: %v", p)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return badger.Open(dbOptions(dir, indexMemory))
}

func (c *Cache) dbGet(key []byte, fn func([]byte) error) (found bool, err error) {
	if c.db == nil {
		return false, nil
	}
	err = c.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(key)
		if err != nil {
			return err
		}
		return item.Value(fn)
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// dbRoom returns an error if the disk is so full that writing to the database
// could kill the process.
func (c *Cache) dbRoom() error {
	for {
		d := c.space.free()
		if d.free >= d.dbReserve() {
			return nil
		}
		if !c.space.evict(d.dbReserve() - d.free) {
			return fmt.Errorf("write local database: %w", syscall.ENOSPC)
		}
	}
}

// addTable adds the table of a multichunk to the index, which was found just now, or put if it is this client's own.
func (c *Cache) addTable(n store.Name, table []store.TableEntry, own bool) error {
	if err := c.dbRoom(); err != nil {
		return err
	}
	if err := c.index.AddTable(n, table); err != nil {
		return err
	}
	return c.vouch(n, own)
}

// dbPut stores pairs of keys and values, and reports whether it could. That it
// could not is logged and no error: what is in the database can be found elsewhere.
func (c *Cache) dbPut(fn func(set func(key, value []byte))) bool {
	if c.db == nil || c.dbRoom() != nil {
		return false
	}
	wb := c.db.NewWriteBatch()
	defer wb.Cancel()
	var failed error
	fn(func(key, value []byte) {
		if failed == nil {
			failed = wb.Set(key, value)
		}
	})
	if failed == nil {
		failed = wb.Flush()
	}
	if failed != nil {
		c.trouble(fmt.Errorf("write local database: %w", failed))
	}
	return failed == nil
}

// chunkBytes is about what a chunk takes in the database: its place, and its id in
// the list of its multichunk.
const chunkBytes = 64

// trimDB deletes all cached nodes when they take more than the share that they may,
// and has the tables that were added first given up for hooks when these do.
func (c *Cache) trimDB() {
	if c.db == nil || c.dbRoom() != nil {
		return
	}
	share := max(c.o.Size/8, 64<<20)
	chunks, err := c.index.Chunks()
	if err != nil {
		c.trouble(err)
		return
	}
	if lsm, _ := c.db.Size(); lsm-int64(chunks)*chunkBytes >= share {
		if err := c.db.DropPrefix([]byte{keyNode}); err != nil {
			c.trouble(fmt.Errorf("trim local database: %w", err))
		}
	}
	if most := uint64(share / chunkBytes); chunks > most && c.trimming.CompareAndSwap(false, true) {
		_, err := c.start(func(ctx context.Context) {
			defer c.trimming.Store(false)
			if err := c.index.Trim(ctx, most-most/16, c.hasReceipt); err != nil && ctx.Err() == nil {
				c.trouble(err)
			}
		})
		if err != nil {
			c.trimming.Store(false) // closed
		}
	}
}

// hasReceipt reports whether there is a receipt of multichunk n: then references may lack where its chunks lie.
func (c *Cache) hasReceipt(n store.Name) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.receipts[n]
	return ok
}

func dbDir(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "badger")
}

// dbLogger passes Badger's log on, most of it as details.
type dbLogger struct{}

func (dbLogger) line(format string, args []any) string {
	return "badger: " + strings.TrimSpace(fmt.Sprintf(format, args...))
}

func (l dbLogger) Errorf(format string, args ...any)   { slog.Warn(l.line(format, args)) }
func (l dbLogger) Warningf(format string, args ...any) { slog.Debug(l.line(format, args)) }
func (l dbLogger) Infof(format string, args ...any)    { slog.Debug(l.line(format, args)) }
func (l dbLogger) Debugf(format string, args ...any)   {}
