package remotetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
)

func TestFaultKinds(t *testing.T) {
	content := []byte("0123456789")
	for _, test := range []struct {
		kind   Kind
		op     string
		err    error // nil: the call succeeds
		stored string
	}{
		{ErrBefore, "put", ErrInjected, ""},
		{ErrAfter, "put", ErrInjected, "0123456789"},
		{HalfPut, "put", ErrInjected, "01234"},
		{LostPut, "put", nil, ""},
		{NoSpace, "put", remote.ErrNoSpace, ""},
		{Refused, "put", remote.ErrAuth, ""},
		{Unreachable, "put", remote.ErrUnreachable, ""},
		{Hang, "put", context.DeadlineExceeded, ""},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			m := NewMem()
			f := NewFault(m, nil)
			f.Inject(test.kind, test.op, "a", 1)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := f.Put(ctx, "a", content); !errors.Is(err, test.err) {
				t.Errorf("Put = %v, want %v", err, test.err)
			}
			if got, _ := m.Object("a"); string(got) != test.stored {
				t.Errorf("stored %q, want %q", got, test.stored)
			}
			if got := f.Hits()[test.kind]; got != 1 || f.Total() != 1 {
				t.Errorf("hits = %d of %d, want 1 of 1", got, f.Total())
			}
			put(t, f, "a", content)
			wantGet(t, m, "a", content, 0, -1)
		})
	}
}

func TestFaultBodies(t *testing.T) {
	content := Bytes(1000, 1)
	for _, kind := range []Kind{ShortBody, CorruptBody, WrongRange} {
		t.Run(string(kind), func(t *testing.T) {
			f := NewFault(NewMem(), nil)
			put(t, f, "a", content)
			f.Inject(kind, "get", "", 1)
			got, err := f.Get(t.Context(), "a", 10, 500)
			if err != nil || bytes.Equal(got, content[10:510]) {
				t.Errorf("Get = the right bytes, %v, want wrong ones and no error", err)
			}
			wantGet(t, f, "a", content, 10, 500)
		})
	}
}

func TestFaultLists(t *testing.T) {
	for kind, want := range map[Kind]int{StaleList: 6, DoubledList: 20, BrokenList: 5} {
		t.Run(string(kind), func(t *testing.T) {
			f := NewFault(NewMem(), nil)
			for i := range 10 {
				put(t, f, fmt.Sprintf("d/%d", i), nil)
			}
			f.Inject(kind, "list", "d", 1)
			got := 0
			err := f.List(t.Context(), "d", func(remote.Entry) error { got++; return nil })
			if got != want || (err != nil) != (kind == BrokenList) {
				t.Errorf("List = %d entries, %v, want %d", got, err, want)
			}
		})
	}
}

func TestFaultHook(t *testing.T) {
	f := NewFault(NewMem(), nil)
	killed := errors.New("killed")
	f.SetHook(func(op, name string) error {
		if op == "put" && f.Calls("put") >= 3 {
			return killed
		}
		return nil
	})
	for i := range 5 {
		err := f.Put(t.Context(), fmt.Sprint(i), nil)
		if got, want := err != nil, i >= 2; got != want {
			t.Errorf("put %d: %v", i, err)
		}
	}
	f.Heal()
	put(t, f, "after", nil)
}

// TestFaultReplays checks that a seed gives the same faults again.
func TestFaultReplays(t *testing.T) {
	run := func() (map[Kind]int, string) {
		f := NewFault(NewMem(), &FaultOptions{Seed: 7, Rates: map[Kind]float64{ErrBefore: 0.2, ErrAfter: 0.2, LostPut: 0.1}})
		var trace bytes.Buffer
		for i := range 200 {
			fmt.Fprintln(&trace, f.Put(t.Context(), fmt.Sprint(i), []byte("x")))
		}
		return f.Hits(), trace.String()
	}
	hits, trace := run()
	again, traceAgain := run()
	if !maps.Equal(hits, again) || trace != traceAgain {
		t.Errorf("the same seed gave %v and then %v", hits, again)
	}
	if len(hits) != 3 || hits[ErrBefore] < 20 {
		t.Errorf("hits = %v, want all three kinds", hits)
	}
}

func TestFaultBandwidth(t *testing.T) {
	var spent time.Duration
	f := NewFault(NewMem(), &FaultOptions{Latency: time.Second, Bandwidth: 1000,
		Sleep: func(_ context.Context, d time.Duration) error { spent += d; return nil }})
	put(t, f, "a", make([]byte, 5000))
	if spent != 6*time.Second {
		t.Errorf("5000 bytes at 1000 B/s and 1 s latency took %v, want 6s", spent)
	}
}
