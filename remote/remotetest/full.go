package remotetest

import (
	"context"
	"fmt"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
)

// A Full is a Mem that holds no more than so many bytes: a put that does not fit is refused with remote.ErrNoSpace.
type Full struct {
	*Mem

	mu      sync.Mutex // guards what follows; held while something is put
	limit   int64      // bytes
	refused int
}

var _ remote.Storage = (*Full)(nil)

// NewFull returns a Full over m with no limit yet.
func NewFull(m *Mem) *Full { return &Full{Mem: m, limit: -1} }

// SetLimit sets how many bytes fit; what is there stays even if it is more. A negative limit is none.
func (f *Full) SetLimit(limit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = limit
}

// Refused returns how many puts did not fit so far.
func (f *Full) Refused() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// Put implements remote.Storage.
func (f *Full) Put(ctx context.Context, name string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, _ := f.Object(name)
	if f.limit >= 0 && f.Bytes()-int64(len(old))+int64(len(data)) > f.limit {
		f.refused++
		return fmt.Errorf("put %s: %w", name, remote.ErrNoSpace)
	}
	return f.Mem.Put(ctx, name, data)
}
