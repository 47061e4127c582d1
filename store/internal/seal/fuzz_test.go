package seal

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"
)

// allocated returns how many bytes fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func checkVerdict(t *testing.T, err error) {
	t.Helper()
	for _, known := range []error{nil, ErrCorrupt, ErrFormat, ErrForeign, ErrPassword, ErrNotListed} {
		if errors.Is(err, known) {
			return
		}
	}
	t.Errorf("error of no kind: %v", err)
}

func FuzzOpen(f *testing.F) {
	k := NewKeyring(repository)
	for _, size := range []int{0, 1, SegmentSize + 1} {
		wire, _ := k.Seal(nil, KindCommit, "n", make([]byte, size))
		f.Add(wire, 0, size)
	}
	f.Fuzz(func(t *testing.T, wire []byte, off, n int) {
		limit := uint64(3*len(wire)) + 1<<20
		if got := allocated(func() {
			_, err := k.Open(nil, KindCommit, "n", wire)
			checkVerdict(t, err)
			_, err = k.OpenRange(bytes.NewReader(wire), int64(len(wire)), KindCommit, "n", off, n)
			checkVerdict(t, err)
			_, _, err = k.OpenPadded(KindCommit, "n", wire)
			checkVerdict(t, err)
		}); got > limit {
			t.Errorf("%d bytes made it allocate %d", len(wire), got)
		}
	})
}

func FuzzSlot(f *testing.F) {
	id, wire := newSlot(f)
	f.Add(wire[:slotEnd])
	f.Fuzz(func(t *testing.T, b []byte) {
		wire := append(b, make([]byte, 32)...)
		mend(wire)
		_, err := ParseSlot(repository, id.slot.ID, wire)
		checkVerdict(t, err)
	})
}

func FuzzKeyringBody(f *testing.F) {
	id, _ := newSlot(f)
	f.Add(appendBody(nil, NewKeyring(repository), Roster{Slots: []Listed{id.List("name", time.Unix(1, 0))}, Removed: []ID{{7}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := allocated(func() {
			_, _, err := parseBody(repository, b)
			checkVerdict(t, err)
		}); got > uint64(10*len(b))+1<<20 {
			t.Errorf("%d bytes made it allocate %d", len(b), got)
		}
	})
}

func FuzzRecovery(f *testing.F) {
	f.Add([]byte(formatRecovery(newRecovery())))
	f.Fuzz(func(t *testing.T, typed []byte) {
		secret, err := parseRecovery(typed)
		if err != nil {
			return
		}
		again, err := parseRecovery([]byte(formatRecovery(secret)))
		if err != nil || again != secret {
			t.Errorf("%q: round trip gives %x, %v", typed, again, err)
		}
	})
}
