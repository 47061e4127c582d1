package fs

import (
	"math/rand"
	"testing"
)

// TestOverwriteCutsLittle changes 4 KiB in the middle of a file, appends one byte, and inserts at its end: only what is around
// the change is read and cut again.
func TestOverwriteCutsLittle(t *testing.T) {
	const size = 48 << 20
	e := newEnv(t)
	data := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(data)
	e.write("big", 0, data)
	e.commit()
	if got := e.v.cutBytes.Load(); got != size {
		t.Errorf("a new file of %d bytes: %d were cut", size, got)
	}
	tests := []struct {
		name string
		off  int64
		n    int
	}{
		{"4 KiB in the middle", size/2 + 777, 4096},
		{"one byte appended", size, 1},
		{"4 KiB behind a hole", size + 1<<30, 4096},
		{"one byte in front", 0, 1},
	}
	for _, tt := range tests {
		before := e.v.cutBytes.Load()
		e.write("big", tt.off, data[:tt.n])
		e.commit()
		if got := e.v.cutBytes.Load() - before; got == 0 || got > 1<<20 {
			t.Errorf("%s: %d bytes were cut", tt.name, got)
		}
	}
}
