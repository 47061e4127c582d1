package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// checkedFor is how long what `check --read-data` has read need not be read again, when it was interrupted.
const checkedFor = 24 * time.Hour

// checked remembers on this machine which multichunks a check has read and found intact, so that one that was interrupted goes on where it
// was. It is a file of records, only appended to, and deleted when a check has come to its end:
//
//	name(16)   time of reading, seconds(8)   CRC-32C of both(4)
//
// A record that is damaged, in the future or too old counts for nothing.
type checked struct {
	path string
	done map[store.Name]bool // as it began

	mu   sync.Mutex // guards what follows
	file *os.File   // nil until something was read
	err  error      // of writing; the check goes on without
}

const checkedRecord = 16 + 8 + 4 // bytes

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendChecked(dst []byte, n store.Name, at time.Time) []byte {
	begin := len(dst)
	dst = append(dst, n[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(at.Unix()))
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[begin:], castagnoli))
}

// parseChecked returns the multichunks of the records in b that count now.
func parseChecked(b []byte, now time.Time) map[store.Name]bool {
	done := map[store.Name]bool{}
	for ; len(b) >= checkedRecord; b = b[checkedRecord:] {
		record, sum := b[:checkedRecord-4], binary.BigEndian.Uint32(b[checkedRecord-4:])
		age := now.Sub(time.Unix(int64(binary.BigEndian.Uint64(record[16:])), 0))
		if crc32.Checksum(record, castagnoli) == sum && age >= 0 && age < checkedFor {
			done[store.Name(record[:16])] = true
		}
	}
	return done
}

// openChecked returns what is remembered of repository id in the cache directory root; nothing if it shall begin anew.
func openChecked(root string, id store.RepositoryID, anew bool) (*checked, error) {
	c := &checked{path: filepath.Join(root, "checked", id.String()), done: map[store.Name]bool{}}
	if anew {
		return c, c.forget()
	}
	b, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what was checked before: %w", err)
	}
	c.done = parseChecked(b, time.Now())
	if len(c.done) == 0 {
		return c, c.forget()
	}
	return c, os.Truncate(c.path, int64(len(b)-len(b)%checkedRecord)) // the last record may have been cut short
}

// has reports whether n was read lately.
func (c *checked) has(n store.Name) bool { return c.done[n] }

// add remembers that n is intact.
func (c *checked) add(n store.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.file == nil {
		c.err = os.MkdirAll(filepath.Dir(c.path), 0o700)
		if c.err == nil {
			c.file, c.err = os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		}
	}
	if c.err == nil {
		_, c.err = c.file.Write(appendChecked(nil, n, time.Now()))
	}
}

// close ends it. After a check that has come to its end there is nothing to go on with.
func (c *checked) close(ended bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.err
	if c.file != nil {
		err = errors.Join(err, c.file.Close())
	}
	if ended {
		err = errors.Join(err, c.forget())
	}
	return err
}

func (c *checked) forget() error {
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
