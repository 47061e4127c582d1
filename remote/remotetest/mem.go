package remotetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/rclone/rclone/fs/fserrors"
	"github.com/tidwall/btree"
)

// A Mem is a Storage in memory. The zero value is not usable; see NewMem.
//
// It is stricter than the contract where that finds mistakes: a put of other
// bytes under a name that is taken is an error, unless what stands there is a
// shorter piece of them, as a put that broke off would leave it.
type Mem struct {
	mu      sync.Mutex // guards all below
	objects btree.Map[string, object]
	gone    bool
	lag     time.Duration
	now     func() time.Time
}

// An object with deleted set is only there for listings that lag behind.
type object struct {
	data    []byte // never changed in place, so snapshots share it
	put     time.Time
	deleted time.Time
}

var _ remote.Storage = (*Mem)(nil)

// NewMem returns an empty Storage in memory.
func NewMem() *Mem { return &Mem{now: time.Now} }

// Put implements remote.Storage.
func (m *Mem) Put(ctx context.Context, name string, data []byte) error {
	if err := m.check(ctx, "put", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return fmt.Errorf("put %s: %w", name, remote.ErrRootGone)
	}
	if old, ok := m.live(name); ok {
		if bytes.Equal(old.data, data) {
			return nil
		}
		if !bytes.HasPrefix(data, old.data) {
			return fmt.Errorf("put %s: other bytes stand under this name", name)
		}
	}
	m.objects.Set(name, object{data: bytes.Clone(data), put: m.now()})
	return nil
}

// Get implements remote.Storage.
func (m *Mem) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if err := m.check(ctx, "get", name); err != nil {
		return nil, err
	}
	if err := remote.CheckRange(off, n); err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	data, err := m.get(name)
	if err != nil {
		return nil, err
	}
	size := int64(len(data))
	if off > size || n >= 0 && off+n > size {
		err := fmt.Errorf("get %s: %d bytes from %d of %d: %w", name, n, off, size, io.ErrUnexpectedEOF)
		return nil, fserrors.NoRetryError(err)
	}
	if n < 0 {
		n = size - off
	}
	return append(make([]byte, 0, n), data[off:off+n]...), nil
}

// List implements remote.Storage. Entries come in the order of their names.
func (m *Mem) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	if dir != "" {
		if err := remote.CheckName(dir); err != nil {
			return fmt.Errorf("list: %w", err)
		}
	}
	entries, err := m.entries(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("list %q: %w", dir, err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements remote.Storage.
func (m *Mem) Delete(ctx context.Context, name string) error {
	if err := m.check(ctx, "delete", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return fmt.Errorf("delete %s: %w", name, remote.ErrRootGone)
	}
	m.remove(name)
	return nil
}

// Object returns what is stored under name, which must not be changed.
func (m *Mem) Object(name string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.live(name)
	return o.data, ok && !m.gone
}

// SetObject stores data under name whatever stands there, as a storage that
// cannot be trusted might.
func (m *Mem) SetObject(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects.Set(name, object{data: bytes.Clone(data), put: m.now()})
}

// Names returns the names of all objects, sorted.
func (m *Mem) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	m.objects.Scan(func(name string, o object) bool {
		if o.deleted.IsZero() {
			names = append(names, name)
		}
		return true
	})
	return names
}

// Bytes returns the sum of the sizes of all objects.
func (m *Mem) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var sum int64
	m.objects.Scan(func(_ string, o object) bool {
		if o.deleted.IsZero() {
			sum += int64(len(o.data))
		}
		return true
	})
	return sum
}

// A Snapshot is the state of a Mem at one instant. It costs no copy of the
// objects.
type Snapshot struct{ objects *btree.Map[string, object] }

// Snapshot returns the present state.
func (m *Mem) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Snapshot{m.objects.Copy()}
}

// Restore rolls back to the state of s, which may come from another Mem and be
// used again.
func (m *Mem) Restore(s Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects = *s.objects.Copy()
}

// SetListingLag makes listings show the objects as they were d ago. Get is
// never behind.
func (m *Mem) SetListingLag(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lag = d
}

// SetClock sets the clock by which the listing lag is reckoned.
func (m *Mem) SetClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// SetGone takes the root away, or puts it back with all that was in it.
func (m *Mem) SetGone(gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = gone
}

func (m *Mem) check(ctx context.Context, op, name string) error {
	if err := remote.CheckName(name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", op, name, err)
	}
	return nil
}

func (m *Mem) get(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.live(name)
	switch {
	case m.gone:
		return nil, fmt.Errorf("get %s: %w", name, remote.ErrRootGone)
	case !ok:
		return nil, fmt.Errorf("get %s: %w", name, remote.ErrNotExist)
	}
	return o.data, nil
}

// live returns the object under name unless it was deleted. m.mu is held.
func (m *Mem) live(name string) (object, bool) {
	o, ok := m.objects.Get(name)
	return o, ok && o.deleted.IsZero()
}

// remove deletes name, leaving a trace if listings lag. m.mu is held.
func (m *Mem) remove(name string) {
	o, ok := m.live(name)
	switch {
	case !ok:
	case m.lag == 0:
		m.objects.Delete(name)
	default:
		o.deleted = m.now()
		m.objects.Set(name, o)
	}
}

// entries returns what a listing of dir shows. It steps over the content of
// each subdirectory, so it costs what is shown and not what is stored.
func (m *Mem) entries(dir string) ([]remote.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return nil, fmt.Errorf("list %q: %w", dir, remote.ErrRootGone)
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	var entries []remote.Entry
	asOf := m.now().Add(-m.lag)
	it := m.objects.Iter()
	for ok := it.Seek(prefix); ok && strings.HasPrefix(it.Key(), prefix); {
		o := it.Value()
		if o.put.After(asOf) || !o.deleted.IsZero() && !o.deleted.After(asOf) {
			ok = it.Next()
			continue
		}
		name, _, sub := strings.Cut(it.Key()[len(prefix):], "/")
		if sub {
			entries = append(entries, remote.Entry{Name: name, Size: -1, Dir: true})
			ok = it.Seek(prefix + name + "0") // '0' follows '/'
			continue
		}
		entries = append(entries, remote.Entry{Name: name, Size: int64(len(o.data))})
		ok = it.Next()
	}
	return entries, nil
}

// Damage replaces the object under name by what change makes of a copy of it,
// and reports whether there was one.
func (m *Mem) Damage(name string, change func([]byte) []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.live(name)
	if ok {
		o.data = change(slices.Clone(o.data))
		m.objects.Set(name, o)
	}
	return ok
}

// InDir returns the names of the objects below dir, sorted.
func (m *Mem) InDir(dir string) []string {
	return slices.DeleteFunc(m.Names(), func(name string) bool {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if d == dir {
				return false
			}
		}
		return true
	})
}
