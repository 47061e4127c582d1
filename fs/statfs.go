package fs

import (
	"context"
	"sync"
	"time"
)

// The storage is asked how full it is when somebody wants to know: one that answers at once every time, others no more than
// once in spaceEvery. Who comes first waits for spaceWait; later the last answer is good enough when there is no new one in
// a moment.
const (
	spaceEvery  = time.Minute
	spaceWait   = time.Second
	spaceMoment = 20 * time.Millisecond
)

// spaceTeller knows how much room the storage has.
type spaceTeller struct {
	ask func(ctx context.Context) (total, free int64, err error)

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu          sync.Mutex // guards all below
	closed      bool
	total, free int64 // bytes; total is 0 if it is not known
	next        time.Time
	asking      chan struct{} // closed when the answer is there; nil if nobody asks
}

func newSpaceTeller(ask func(context.Context) (total, free int64, err error)) *spaceTeller {
	s := &spaceTeller{ask: ask}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// get returns what is known, in bytes; ok is false if nothing is.
func (s *spaceTeller) get(ctx context.Context) (total, free int64, ok bool) {
	if s.ask == nil {
		return 0, 0, false
	}
	if asking, wait := s.refresh(); asking != nil {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-asking:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total, s.free, s.total > 0
}

// refresh has the storage asked if it is time to. It returns what to wait for, and how long.
func (s *spaceTeller) refresh() (<-chan struct{}, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking == nil && !s.closed && !time.Now().Before(s.next) {
		s.asking = make(chan struct{})
		s.wg.Go(s.answer)
	}
	if s.total > 0 {
		return s.asking, spaceMoment
	}
	return s.asking, spaceWait
}

func (s *spaceTeller) answer() {
	ctx, cancel := context.WithTimeout(s.ctx, spaceEvery)
	defer cancel()
	begun := time.Now()
	total, free, err := s.ask(ctx)
	took := time.Since(begun)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.total, s.free = total, free
	}
	s.next = time.Now().Add(min(100*took, spaceEvery))
	if err != nil {
		s.next = time.Now().Add(spaceEvery)
	}
	close(s.asking)
	s.asking = nil
}

func (s *spaceTeller) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// Statfs describes the volume: the room that the storage has. One that cannot tell is shown as a petabyte, all of it free.
// Files take no room of their own that could run out.
func (v *Volume) Statfs(ctx context.Context) (Statfs, error) {
	const block, endless = 4096, 1 << 38
	s := Statfs{Blocks: endless, Bfree: endless, Bavail: endless, Files: 1 << 40, Ffree: 1 << 40, Bsize: block, NameLen: NameMax}
	if total, free, ok := v.space.get(ctx); ok {
		s.Blocks, s.Bfree, s.Bavail = uint64(total)/block, uint64(free)/block, uint64(free)/block
	}
	return s, nil
}
