//go:build unix

package chunking

import (
	"testing"

	"golang.org/x/sys/unix"
)

// guarded returns n bytes, a multiple of 64 KiB, with inaccessible pages
// before and after them: whoever reads beyond ends the test.
func guarded(t *testing.T, n int) []byte {
	t.Helper()
	const guard = 64 << 10
	m, err := unix.Mmap(-1, 0, n+2*guard, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	for _, page := range [][]byte{m[:guard], m[guard+n:]} {
		if err := unix.Mprotect(page, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return m[guard : guard+n : guard+n]
}

func TestGuardKernels(t *testing.T) {
	rng := newRand(t)
	mem := guarded(t, 64<<10)
	copy(mem, sample(rng, "random", len(mem)))
	k := expandGFD(randomKey(rng), 3)
	for _, s := range gfdScanners {
		for n := range 600 {
			marksOf(s.scan, k, mem[:gfdReach+n], gfdReach, gfdReach+n)
			tail := mem[len(mem)-gfdReach-n:]
			marksOf(s.scan, k, tail, gfdReach, len(tail))
		}
	}
}

func TestGuardEnds(t *testing.T) {
	rng := newRand(t)
	mem := guarded(t, 64<<10)
	copy(mem, sample(rng, "random", len(mem)))
	for _, name := range allNames {
		c := newChunker(t, name, randomKey(rng))
		for n := 0; n <= len(mem); n += 1 + rng.IntN(900) {
			for _, eof := range []bool{false, true} {
				c.Ends(nil, mem[:n], eof)
				c.Ends(nil, mem[len(mem)-n:], eof)
			}
		}
	}
	ReadMemory(mem)
}
