package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// place tells one cache directory from its copies: the machine, and the inode numbers of the directory and of its lock. A copy, on
// another machine or beside the first, has others; what is only renamed has the same.
type place struct {
	machine   string // "" if the system has no name for it
	dir, lock uint64
}

// copied reports whether a directory that was at p before and is at q now is a copy.
func (p place) copied(q place) bool {
	other := p.machine != q.machine && p.machine != "" && q.machine != ""
	return other || p.dir != q.dir && p.lock != q.lock
}

func placeOf(dir string) (p place, err error) {
	for name, ino := range map[string]*uint64{dir: &p.dir, filepath.Join(dir, "lock"): &p.lock} {
		fi, err := os.Stat(name)
		if err != nil {
			return place{}, err
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			*ino = uint64(st.Ino)
		}
	}
	if b, err := os.ReadFile("/etc/machine-id"); err == nil {
		p.machine = strings.TrimSpace(string(b))
	}
	return p, nil
}

func (p place) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, p.dir), p.lock)
	return appendBytes(dst, []byte(p.machine))
}

func parsePlace(b []byte) (p place, ok bool) {
	d := decoder{b: b}
	p.dir, p.lock = d.uint64(), d.uint64()
	p.machine = string(d.bytes())
	return p, d.done()
}

// checkPlace finds out whether the directory is a copy of the one that was opened last. Of a copy the database goes: what it says
// about the remote may have changed since, with nobody here to notice.
func (c *Cache) checkPlace(dir string) error {
	if dir == "" {
		return nil
	}
	now, err := placeOf(dir)
	if err != nil {
		return fmt.Errorf("look where the cache lies: %w", err)
	}
	b, err := readSmallFile(c.fsys, "place", magicPlace, maxSmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c.writePlace(now)
	}
	before, ok := place{}, false
	if err == nil {
		before, ok = parsePlace(b)
	}
	if ok && !before.copied(now) {
		c.at = now
		return nil
	}
	c.copied, c.at = true, now
	return os.RemoveAll(dbDir(dir))
}

func (c *Cache) writePlace(p place) error {
	c.at = p
	return writeFile(c.fsys, "place", appendSmallFile(nil, magicPlace, p.append(nil)))
}

// Copied reports whether this is a copy of a cache directory, or was put back from a backup: whoever it was as a client may live
// on elsewhere, and have come further. It must go on as a new incarnation, and say so with Settled.
func (c *Cache) Copied() bool { return c.copied }

// Settled makes this place the one where the client lives.
func (c *Cache) Settled() error {
	if !c.copied {
		return nil
	}
	if err := c.writePlace(c.at); err != nil {
		return fmt.Errorf("note where the cache lies: %w", err)
	}
	c.copied = false
	return nil
}

// Unsettle makes the next process that opens the directory take it for a copy.
func (c *Cache) Unsettle() error {
	if c.fsys == nil {
		return nil
	}
	return c.writePlace(place{})
}
