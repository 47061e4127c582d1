package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// ErrEpoch says that an object was sealed under a key that the keyring, as it was read last, does not have. It is an
// ErrCorrupt as well.
var ErrEpoch = seal.ErrEpoch

// IsLost reports whether err means that something is not, or not intact, where it should be, and that asking again changes
// nothing: it has to come from elsewhere.
func IsLost(err error) bool {
	return (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) || errors.Is(err, remote.ErrNotExist)) && !errors.Is(err, ErrEpoch)
}

func lostKey(n Name) []byte { return append([]byte("il"), n[:]...) }

// Lose forgets multichunk n, which is lost or damaged, and keeps its table out until Regain: what it holds is stored again
// when it is written again. Like Forget, it syncs.
func (x *Index) Lose(n Name) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	err := x.db.Update(func(txn *badger.Txn) error { return txn.Set(lostKey(n), nil) })
	if err == nil {
		err = x.forget(n)
	}
	if err == nil {
		err = x.db.Sync()
	}
	if err != nil {
		return fmt.Errorf("lose multichunk %v: %w", n, err)
	}
	return nil
}

// Lost reports whether Lose was the last that was said of multichunk n.
func (x *Index) Lost(n Name) (lost bool, err error) {
	err = x.db.View(func(txn *badger.Txn) error {
		lost, err = get(txn, lostKey(n), nil)
		return err
	})
	return lost, err
}

// Regain lets the table of multichunk n in again, which has been found intact.
func (x *Index) Regain(n Name) error {
	x.writeMu.Lock()
	defer x.writeMu.Unlock()
	if err := x.db.Update(func(txn *badger.Txn) error { return txn.Delete(lostKey(n)) }); err != nil {
		return fmt.Errorf("regain multichunk %v: %w", n, err)
	}
	return nil
}

// VerifyMultichunk returns nil if wire is the whole object of multichunk n and every byte of it is right.
func (r *Repository) VerifyMultichunk(n Name, wire []byte) error {
	if _, err := r.openMultichunk(n, wire); err != nil {
		return fmt.Errorf("multichunk %v: %w", n, err)
	}
	return nil
}

// A Finder goes through the multichunks of one kind that the commits of all clients announce, roughly the newest first, then through
// those that no commit announces, and each once: what is lost and was stored again lies in one of them. It reads no more
// commits and tables than it is asked for. It is safe for concurrent use.
type Finder struct {
	r    *Repository
	kind Kind

	mu     sync.Mutex // guards all below; held while the remote is asked
	known  map[uint64]bool
	given  map[uint64]bool
	queue  []Head // commits to look at
	skips  []Head // older ones, for when a commit between cannot be read
	names  []Name // multichunks to look at, before any commit
	behind bool   // the heads have not been asked for, or may have changed since
	listed int    // directories of multichunks that have been listed
}

// NewFinder returns a Finder that has not seen anything.
func (r *Repository) NewFinder(kind Kind) *Finder {
	return &Finder{r: r, kind: kind, known: map[uint64]bool{}, given: map[uint64]bool{}, behind: true}
}

// Renew lets the Finder look for newer commits before it goes on.
func (f *Finder) Renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = true
}

// Next returns the next multichunk with its table, or ErrNotFound when there is none. Commits and multichunks that are lost or
// damaged are passed over.
func (f *Finder) Next(ctx context.Context) (Name, []TableEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if err := f.fill(ctx); err != nil {
			return Name{}, nil, err
		}
		n := f.names[0]
		kind, table, err := f.r.ReadTable(f.r.RemoteReader(ctx, n), -1, n)
		if err != nil && !IsLost(err) {
			return Name{}, nil, err
		}
		f.names = f.names[1:]
		if err == nil && kind == f.kind {
			return n, table, nil
		}
	}
}

// fill reads commits until there is a name. f.mu is held.
func (f *Finder) fill(ctx context.Context) error {
	if f.behind {
		heads, err := f.r.Poll(ctx, new(Trust))
		if err != nil && len(heads) == 0 {
			return err
		}
		f.queue = append(heads, f.queue...)
		f.behind = false
	}
	for len(f.names) == 0 {
		if len(f.queue) == 0 {
			f.queue, f.skips = f.skips, nil
		}
		if len(f.queue) == 0 {
			if f.listed == 256 {
				return fmt.Errorf("look through all multichunks: %w", ErrNotFound)
			}
			if err := f.list(ctx); err != nil {
				return err
			}
			continue
		}
		if err := f.visit(ctx, f.queue[0]); err != nil {
			return err
		}
		f.queue = f.queue[1:]
	}
	return nil
}

// list takes the names in one more directory that have not been given yet. f.mu is held.
func (f *Finder) list(ctx context.Context) error {
	dir := fmt.Sprintf("%s/%02x", dataDir, f.listed)
	err := listObjects(ctx, f.r.st, dir, func(id [16]byte, _ remote.Entry) {
		if n := Name(id); parent(ObjectName(n)) == dir {
			f.give(n)
		}
	})
	if err != nil {
		return err
	}
	f.listed++
	return nil
}

// parent returns the directory of an object.
func parent(object string) string { return object[:strings.LastIndexByte(object, '/')] }

// give takes a name, once. f.mu is held.
func (f *Finder) give(n Name) {
	key := binary.BigEndian.Uint64(n[:])
	if !f.given[key] {
		f.given[key] = true
		f.names = append(f.names, n)
	}
}

// visit takes the names that a commit announces, and what is before it as the next to look at. f.mu is held.
func (f *Finder) visit(ctx context.Context, h Head) error {
	key := binary.BigEndian.Uint64(h.Hash[:])
	if f.known[key] {
		return nil
	}
	c, err := f.r.GetCommit(ctx, h)
	if err != nil && !IsLost(err) {
		return err
	}
	f.known[key] = true
	if err != nil {
		return nil // what is before it may be reached by skip links
	}
	for i := range c.Multichunks {
		if m := &c.Multichunks[i]; m.Kind == f.kind {
			f.give(m.Name)
		} else {
			f.given[binary.BigEndian.Uint64(m.Name[:])] = true
		}
	}
	for _, seen := range c.Seen {
		if !f.known[binary.BigEndian.Uint64(seen.Hash[:])] {
			f.queue = append(f.queue, seen)
		}
	}
	if c.Seq > 1 {
		f.queue = append(f.queue, Head{c.Client, c.Incarnation, c.Seq - 1, c.Prev})
	}
	for _, s := range c.Skip {
		f.skips = append(f.skips, Head{c.Client, c.Incarnation, s.Seq, s.Hash})
	}
	return nil
}
