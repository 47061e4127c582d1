package remote_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/rclone/rclone/fs/fserrors"
)

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 takes one from the clock")

// retrying returns a storage that retries on f in no time, and what it waited.
func retrying(f remote.Storage, attempts int) (remote.Storage, *[]time.Duration) {
	var waits []time.Duration
	return remote.WithRetry(f, &remote.RetryOptions{
		Attempts: attempts,
		Rand:     func() float64 { return 1 },
		Sleep: func(ctx context.Context, d time.Duration) error {
			waits = append(waits, d)
			return ctx.Err()
		},
	}), &waits
}

func TestRetrySuite(t *testing.T) {
	remotetest.TestStorage(t, func(*testing.T) remote.Storage { return remote.WithRetry(remotetest.NewMem(), nil) })
}

func TestRetryBacksOff(t *testing.T) {
	f := remotetest.NewFault(remotetest.NewMem(), nil)
	s, waits := retrying(f, 5)
	f.Inject(remotetest.Unreachable, "put", "", -1)
	err := s.Put(t.Context(), "a", nil)
	if !errors.Is(err, remote.ErrUnreachable) {
		t.Errorf("Put = %v, want ErrUnreachable", err)
	}
	want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	if fmt.Sprint(*waits) != fmt.Sprint(want) {
		t.Errorf("waited %v, want %v", *waits, want)
	}
}

// TestRetryOutage has a storage that is away: who comes late is told at once, until it is there again.
func TestRetryOutage(t *testing.T) {
	f := remotetest.NewFault(remotetest.NewMem(), nil)
	now := time.Unix(0, 0)
	s := remote.WithRetry(f, &remote.RetryOptions{
		Rand: func() float64 { return 1 },
		Now:  func() time.Time { return now },
		Sleep: func(_ context.Context, d time.Duration) error {
			now = now.Add(d)
			return nil
		},
	})
	tries := func() int {
		before := f.Calls("put")
		_ = s.Put(t.Context(), "a", nil)
		return f.Calls("put") - before
	}
	f.Inject(remotetest.Unreachable, "put", "", -1)
	if n := tries(); n != 5 {
		t.Errorf("the first one tries %d times, want 5", n)
	}
	now = now.Add(5 * time.Second)
	if n := tries(); n != 1 {
		t.Errorf("after 5 s of nothing one tries %d times, want 1", n)
	}
	now = now.Add(time.Hour)
	if n := tries(); n != 5 {
		t.Errorf("an hour later one tries %d times, want 5", n)
	}
	now = now.Add(5 * time.Second)
	if _, err := s.Get(t.Context(), "none", 0, -1); !errors.Is(err, remote.ErrNotExist) {
		t.Fatal(err)
	}
	if n := tries(); n != 5 {
		t.Errorf("after an answer one tries %d times, want 5", n)
	}
}

func TestRetryGivesUp(t *testing.T) {
	for _, kind := range []remotetest.Kind{remotetest.Refused, remotetest.NoSpace} {
		f := remotetest.NewFault(remotetest.NewMem(), nil)
		s, waits := retrying(f, 5)
		f.Inject(kind, "put", "", -1)
		if err := s.Put(t.Context(), "a", nil); err == nil || len(*waits) != 0 {
			t.Errorf("%s: Put = %v after %d waits, want an error at once", kind, err, len(*waits))
		}
	}
	s, waits := retrying(remotetest.NewMem(), 5)
	if _, err := s.Get(t.Context(), "a", 0, -1); !errors.Is(err, remote.ErrNotExist) || len(*waits) != 0 {
		t.Errorf("Get of nothing = %v after %d waits", err, len(*waits))
	}
}

func TestRetryAfter(t *testing.T) {
	f := remotetest.NewFault(remotetest.NewMem(), nil)
	s, waits := retrying(f, 2)
	f.SetHook(func(string, string) error { return fserrors.NewErrorRetryAfter(time.Minute) })
	_ = s.Delete(t.Context(), "a")
	if len(*waits) != 1 || (*waits)[0] < 59*time.Second {
		t.Errorf("waited %v, want the minute that was asked for", *waits)
	}
}

func TestRetryStops(t *testing.T) {
	f := remotetest.NewFault(remotetest.NewMem(), nil)
	f.Inject(remotetest.ErrBefore, "put", "", -1)
	ctx, cancel := context.WithCancel(t.Context())
	s := remote.WithRetry(f, &remote.RetryOptions{Sleep: func(ctx context.Context, _ time.Duration) error {
		cancel()
		return ctx.Err()
	}})
	err := s.Put(ctx, "a", nil)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, remotetest.ErrInjected) || f.Calls("put") != 1 {
		t.Errorf("Put = %v after %d calls, want both reasons after 1", err, f.Calls("put"))
	}
}

func TestRetryTimeout(t *testing.T) {
	f := remotetest.NewFault(remotetest.NewMem(), nil)
	f.Inject(remotetest.Hang, "get", "", 1)
	s := remote.WithRetry(f, &remote.RetryOptions{Timeout: 10 * time.Millisecond, MinDelay: 1})
	_ = s.Put(t.Context(), "a", []byte("x"))
	if _, err := s.Get(t.Context(), "a", 0, -1); err != nil {
		t.Errorf("Get after one that hung: %v", err)
	}
}

func TestRetryList(t *testing.T) {
	f := remotetest.NewFault(remotetest.NewMem(), nil)
	s, _ := retrying(f, 3)
	for i := range 10 {
		_ = s.Put(t.Context(), fmt.Sprint(i), nil)
	}
	f.Inject(remotetest.BrokenList, "list", "", 2)
	seen := map[string]bool{}
	if err := s.List(t.Context(), "", func(e remote.Entry) error { seen[e.Name] = true; return nil }); err != nil || len(seen) != 10 {
		t.Errorf("List = %d names, %v, want 10", len(seen), err)
	}
	f.Inject(remotetest.BrokenList, "list", "", -1)
	if err := s.List(t.Context(), "", func(remote.Entry) error { return nil }); err == nil {
		t.Error("a listing that always fails half-way = nil error")
	}
	calls := f.Calls("list")
	if err := s.List(t.Context(), "", func(remote.Entry) error { return io.ErrNoProgress }); err != io.ErrNoProgress || f.Calls("list") != calls+1 {
		t.Errorf("List with an fn that fails = %v after %d calls, want its error after 1", err, f.Calls("list")-calls)
	}
}

// TestRetryRandom checks against a map that transient faults are never seen
// above the retries.
func TestRetryRandom(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", *seed)
	m := remotetest.NewMem()
	f := remotetest.NewFault(m, &remotetest.FaultOptions{Seed: *seed, Rates: map[remotetest.Kind]float64{
		remotetest.ErrBefore: 0.1, remotetest.ErrAfter: 0.1, remotetest.Unreachable: 0.1,
		remotetest.HalfPut: 0.1, remotetest.DoubledList: 0.1, remotetest.BrokenList: 0.1,
	}})
	s, _ := retrying(f, 100)
	for i := range 500 {
		name := fmt.Sprintf("%d/%d", i%7, i)
		data := remotetest.Bytes(i, *seed)
		if err := s.Put(t.Context(), name, data); err != nil {
			t.Fatalf("Put: %v", err)
		}
		if got, err := s.Get(t.Context(), name, 0, -1); err != nil || string(got) != string(data) {
			t.Fatalf("Get: %d bytes of %d, %v", len(got), len(data), err)
		}
		if i%3 == 0 {
			if err := s.Delete(t.Context(), name); err != nil {
				t.Fatalf("Delete: %v", err)
			}
		}
	}
	if got := len(m.Names()); got != 333 {
		t.Errorf("%d objects stand, want 333", got)
	}
	if f.Total() < 200 {
		t.Errorf("only %d faults were injected", f.Total())
	}
}
