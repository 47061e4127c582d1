package chunking

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// cpuTime returns the time that this process has spent on processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchmarkCPU reports the bytes that f processes in a second of CPU time, for
// the machine may have other work.
func benchmarkCPU(b *testing.B, n int, f func()) {
	b.SetBytes(int64(n))
	f()
	start := cpuTime()
	runs := 0
	for b.Loop() {
		f()
		runs++
	}
	b.ReportMetric(float64(n)*float64(runs)/(cpuTime()-start).Seconds()/1e9, "GB/cpu-s")
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	var s [32]byte
	s[0], s[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(s).Read(b)
	return b
}

// inCache and inMemory are sizes of data that the caches hold, and do not.
var benchSizes = []struct {
	name string
	n    int
}{{"cache", 512 << 10}, {"memory", 256 << 20}}

func BenchmarkEnds(b *testing.B) {
	data := randomBytes(1, 256<<20)
	for _, size := range benchSizes {
		for _, name := range []string{"GFD-4", "GFD-8", "GFD-64", "GFD-256"} {
			b.Run(size.name+"/"+name, func(b *testing.B) {
				c, err := New(name, make([]byte, keySize))
				if err != nil {
					b.Fatal(err)
				}
				var ends []int
				benchmarkCPU(b, size.n, func() { ends = c.Ends(ends[:0], data[:size.n], true) })
			})
		}
	}
}

// BenchmarkScan measures the first stage alone, by kernel.
func BenchmarkScan(b *testing.B) {
	data := randomBytes(1, 256<<20)
	for _, size := range benchSizes {
		b.Run(size.name+"/read", func(b *testing.B) {
			benchmarkCPU(b, size.n, func() { ReadMemory(data[:size.n]) })
		})
		for _, s := range gfdScanners {
			b.Run(size.name+"/"+s.name, func(b *testing.B) {
				k := expandGFD(make([]byte, keySize), 6)
				benchmarkCPU(b, size.n, func() {
					for from := gfdReach; from < size.n; {
						i := s.scan(data, from, size.n, k)
						if i < 0 {
							break
						}
						from = i + 1
					}
				})
			})
		}
	}
}

// BenchmarkPapers measures the chunkers of the papers, TTTD-Rabin also in its
// sequential form.
func BenchmarkPapers(b *testing.B) {
	data := randomBytes(1, 32<<20)
	run := func(name string, c Chunker) {
		b.Run(name, func(b *testing.B) {
			var ends []int
			benchmarkCPU(b, len(data), func() { ends = c.Ends(ends[:0], data, true) })
		})
	}
	for _, name := range []string{"Fixed-4", "BSW-8", "TTTD-8-Adler32", "TTTD-8-PLAIN", "TTTD-8-Rabin", "Gear-8", "Typed-8"} {
		c, err := New(name, make([]byte, keySize))
		if err != nil {
			b.Fatal(err)
		}
		run(name, c)
		if name == "TTTD-8-Rabin" {
			c, err = WithKernel(c, "generic")
			if err != nil {
				b.Fatal(err)
			}
			run(name+"/sequential", c)
		}
	}
}
