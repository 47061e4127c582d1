package fs

import (
	"bytes"
	"sync/atomic"
	"testing"
)

// TestReadWhileContentIsDropped reads a file while what lies below its layers is dropped again and again, as taking over another
// client's state does: the reader must load it anew, not find it missing.
func TestReadWhileContentIsDropped(t *testing.T) {
	e := newEnv(t)
	want := bytes.Repeat([]byte("content "), 1000)
	e.write("f", 0, want)
	e.commit()
	h, err := e.v.Open(ctx, e.walk("f"), 0, Cred{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			h.in.mu.Lock()
			h.in.content = nil
			h.in.mu.Unlock()
		}
	}()
	got := make([]byte, len(want))
	for range 2000 {
		if n, err := h.Read(ctx, got, 0); n != len(want) || err != nil || !bytes.Equal(got, want) {
			t.Errorf("Read = %d, %v", n, err)
			break
		}
		if _, err := h.Lseek(ctx, 0, 3); err != nil {
			t.Errorf("Lseek: %v", err)
			break
		}
	}
	stop.Store(true)
	<-done
}
