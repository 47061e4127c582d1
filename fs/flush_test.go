package fs

import (
	"math/rand"
	"runtime"
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

// TestSmallFlushIsSmall counts what memory the commit of a small file takes when the garbage collector has just run.
func TestSmallFlushIsSmall(t *testing.T) {
	e := newEnv(t)
	data := make([]byte, 1000)
	const rounds = 10
	var sum uint64
	for i := range rounds {
		rand.New(rand.NewSource(int64(i))).Read(data)
		e.write("small", 0, data)
		runtime.GC()
		runtime.GC() // what was in a pool goes with the second one
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		e.commit()
		runtime.ReadMemStats(&after)
		sum += after.TotalAlloc - before.TotalAlloc
	}
	if got := sum / rounds; got > 1<<20 {
		t.Errorf("a commit of %d bytes takes %d bytes of memory", len(data), got)
	}
}

// TestZerosKeepTheirBlocks: what was written as zeros shows the same blocks after it was cut, unless it fills a block that a local file
// system could leave out as well.
func TestZerosKeepTheirBlocks(t *testing.T) {
	e := newEnv(t)
	for _, tt := range []struct {
		size       int
		wantBlocks uint64
	}{{1, 1}, {513, 2}, {minHole - 1, 8}, {minHole, 0}, {1 << 20, 0}} {
		e.write("zeros", 0, make([]byte, tt.size))
		e.commit()
		a, err := e.v.Getattr(t.Context(), e.walk("zeros"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.Blocks != tt.wantBlocks {
			t.Errorf("%d zeros: %d blocks, want %d", tt.size, a.Blocks, tt.wantBlocks)
		}
	}
}
