package cache

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// starterFor starts goroutines that a test waits for.
func starterFor(wg *sync.WaitGroup) starter {
	return func(fn func(context.Context)) (context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() { defer cancel(); fn(ctx) })
		return cancel, nil
	}
}

// TestFlightEndsWithItsLastWaiter lets all who wait give up, one after the other.
func TestFlightEndsWithItsLastWaiter(t *testing.T) {
	var f flights[int, int]
	var wg sync.WaitGroup
	start := starterFor(&wg)
	ended := make(chan struct{})
	work := func(ctx context.Context) (int, error) {
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}
	ctx1, cancel1 := context.WithCancel(t.Context())
	ctx2, cancel2 := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for _, ctx := range []context.Context{ctx1, ctx2} {
		go func() {
			_, err := f.do(ctx, 1, start, work)
			errs <- err
		}()
	}
	waiters := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		if c := f.running[1]; c != nil {
			return c.waiting
		}
		return 0
	}
	for waiters() < 2 {
	}
	cancel1()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("first waiter: %v", err)
	}
	select {
	case <-ended:
		t.Error("the work ended while somebody waited")
	default:
	}
	cancel2()
	<-errs
	<-ended
	wg.Wait()
	if v, err := f.do(t.Context(), 1, start, func(context.Context) (int, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("a later call = %d, %v", v, err)
	}
}

func FuzzSmallFiles(f *testing.F) {
	f.Add(appendSmallFile(nil, magicBase, []byte("payload")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range []magic{magicBase, magicReceipt, magicClient, magicPins} {
			parseSmallFile(b, m, "x")
		}
		parseTable(b, store.Name{})
		parseTrailer(b)
		parseState(b)
		d := decoder{b: b}
		d.place()
		c := &Cache{hints: map[store.ID]heldHint{}}
		c.parseBase(b)
	})
}

func FuzzSegment(f *testing.F) {
	s := &segment{number: 1, salt: 2, prev: 3, synced: 4}
	b := appendSegmentHeader(nil, s)
	b = appendRecordHeader(b, 2, makePos(1, 64), FirstType, []byte("body"), 0, 0)
	f.Add(append(b, "body0000"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= segmentHeaderSize {
			parseSegmentHeader(b[:segmentHeaderSize], &segment{number: 1})
		}
		s := &segment{number: 1, salt: 2, file: bytesFile(b), end: int64(len(b))}
		if off, err := s.walk(segmentHeaderSize, s.end, 0, func(r record) error { return nil }); err != nil || off < segmentHeaderSize {
			t.Errorf("walk = %d, %v", off, err)
		}
		if _, err := s.scanMarks(segmentHeaderSize); err != nil {
			t.Error(err)
		}
	})
}

// readOnly is a File of which only ReadAt is called.
type readOnly struct {
	File
	r *bytes.Reader
}

func (f readOnly) ReadAt(p []byte, off int64) (int, error) { return f.r.ReadAt(p, off) }

func bytesFile(b []byte) File { return readOnly{r: bytes.NewReader(b)} }
