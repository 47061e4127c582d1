package cache

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// space is the budget of disk bytes that log, spool, local commits and cached
// multichunks share. Who needs bytes takes them first; when they are used up,
// what is only cache is evicted, and then the one who asks waits.
type space struct {
	limit    atomic.Int64          // bytes
	wait     time.Duration         // how long somebody waits at most
	full     func()                // called when somebody has to wait
	evictOne func() (int64, error) // gives back one thing that is only cache; 0 bytes if there is none
	closed   <-chan struct{}       // nobody waits any more
	free     func() diskSpace      // of the file system

	used atomic.Int64

	mu    sync.Mutex    // guards freed
	freed chan struct{} // closed and renewed when there may be space again
}

// errNoSpace is a budget that is used up, which is to callers what a full disk is.
var errNoSpace = fmt.Errorf("cache size is used up by what waits for upload: %w", syscall.ENOSPC)

func newSpace(limit int64, wait time.Duration, full func(), closed <-chan struct{}) *space {
	s := &space{
		wait: wait, full: full, closed: closed,
		evictOne: func() (int64, error) { return 0, nil },
		free:     func() diskSpace { return diskSpace{free: math.MaxInt64, total: math.MaxInt64} },
		freed:    make(chan struct{}),
	}
	s.limit.Store(limit)
	return s
}

// diskSpace is what the file system of the cache directory has, in bytes.
type diskSpace struct{ free, total int64 }

// dataReserve is what data leaves free on the disk, for local commits, receipts
// and the database, which are needed to bring the data away.
func (d diskSpace) dataReserve() int64 { return min(64<<20, d.total/8) }

// dbReserve is what has to be free before anything is written to the database. It
// writes through mapped files, and a process that does so on a full disk is killed.
func (d diskSpace) dbReserve() int64 { return min(16<<20, d.total/16) }

// reserve is what is left free on the disk by whoever takes space for what. The
// smallest is above that of the database: receipts and the database have to be
// written before anything in the log can go.
func (d diskSpace) reserve(what claim) int64 {
	switch what {
	case forData:
		return d.dataReserve()
	case forCommit:
		return d.dbReserve() + d.dbReserve()/2
	}
	return d.dbReserve() + d.dbReserve()/4
}

// diskFull reports whether n more bytes do not fit on the disk.
func (s *space) diskFull(n int64, what claim) bool {
	d := s.free()
	return d.free-n < d.reserve(what)
}

// patience returns a function that waits until space may have been freed. It
// answers false when the time that began with patience is up, or at the end of it all.
func (s *space) patience(ctx context.Context) func() bool {
	deadline := time.Now().Add(s.wait)
	freed := s.freedChan()
	return func() bool {
		s.full()
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-freed:
			freed = s.freedChan()
			return true
		case <-timer.C:
		case <-ctx.Done():
		case <-s.closed:
		}
		return false
	}
}

func (s *space) freedChan() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freed
}

// reserve is the part of the budget that only records without data may use, so
// that files can be removed when it is full.
func (s *space) reserve() int64 { return s.limit.Load() / 16 }

// A claim says what space is for, and so how much of it there is.
type claim uint8

const (
	forData   claim = iota // bytes of users: what the budget and the disk have beyond their reserves
	forRecord              // records without data: the reserve of data too
	forCommit              // what a commit cannot do without: beyond the budget too, for it is what gives space back
)

// take takes n bytes and reports whether there were as many, evicting what is
// only cache.
func (s *space) take(n int64, what claim) bool {
	limit := s.limit.Load()
	if what == forData {
		limit -= s.reserve()
	}
	for {
		used := s.used.Load()
		if used+n <= limit && !s.diskFull(n, what) {
			if s.used.CompareAndSwap(used, used+n) {
				return true
			}
			continue
		}
		if freed, err := s.evictOne(); err == nil && freed > 0 {
			continue
		}
		if what == forCommit && !s.diskFull(n, what) {
			s.used.Add(n)
			return true
		}
		return false
	}
}

// force takes n bytes that are already there, or that must be.
func (s *space) force(n int64) {
	s.used.Add(n)
	for s.used.Load() > s.limit.Load() {
		if freed, err := s.evictOne(); err != nil || freed == 0 {
			return
		}
	}
}

// give returns n bytes.
func (s *space) give(n int64) {
	s.used.Add(-n)
	s.wake()
}

// wake lets those who wait for space look again.
func (s *space) wake() {
	s.mu.Lock()
	close(s.freed)
	s.freed = make(chan struct{})
	s.mu.Unlock()
}

// evict makes place for n bytes on a disk that is full before the budget is, and
// reports whether it could free anything.
func (s *space) evict(n int64) bool {
	var sum int64
	for sum < n {
		freed, err := s.evictOne()
		if err != nil || freed == 0 {
			break
		}
		sum += freed
	}
	return sum > 0
}
