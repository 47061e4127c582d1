package fs

import (
	"math/rand/v2"
	"testing"
)

// TestReadAheadInOrder shows readers in order and others to what decides whether to read ahead of them.
func TestReadAheadInOrder(t *testing.T) {
	var r readAhead
	for i := range int64(100_000) {
		if off := rand.Int64N(64<<20) &^ 4095; r.inOrder(off, 4096) {
			t.Fatalf("read %d of 4 KiB, at %d of 64 MiB, is taken for one in order", i, off)
		}
	}
	r = readAhead{}
	for i := range int64(10) {
		off := (i ^ 1) << 20 // of two requests of the kernel the second may come first
		if got, want := r.inOrder(off, 1<<20), i > 0; got != want {
			t.Errorf("read %d of 1 MiB in order: %v, want %v", i, got, want)
		}
	}
	if r.inOrder(100<<20, 1<<20) {
		t.Error("a read elsewhere is taken for one in order")
	}
}
