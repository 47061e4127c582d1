// Command chunking compares the chunkers of dedupfs with other Go libraries:
// all in one process, in turns, the median of several rounds, in bytes per CPU
// second. It writes a list of name, average (bytes), data, mean (bytes, real),
// bytes_per_cpu_s and bytes_per_s.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	cdc "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/jc"
	"github.com/dedupfs/dedupfs/chunking"
	"github.com/jotfs/fastcdc-go"
	"github.com/restic/chunker"
)

func main() {
	log.SetFlags(0)
	out := flag.String("o", "bench-chunking.json", "file that the results go to")
	size := flag.Int("mib", 256, "size of the data in MiB; far more than the caches hold")
	rounds := flag.Int("rounds", 5, "turns that each contender gets")
	flag.Parse()

	var results []result
	for _, data := range inputs(*size << 20) {
		for _, avg := range []int{8 << 10, 64 << 10, 1 << 20} {
			results = append(results, compare(data, avg, *rounds)...)
		}
	}
	b, err := json.MarshalIndent(results, "", "  ")
	if err == nil {
		err = os.WriteFile(*out, append(b, '\n'), 0o666)
	}
	if err != nil {
		log.Fatal(err)
	}
}

type input struct {
	name string
	data []byte
}

func inputs(size int) []input {
	return []input{{"random", randomBytes(size)}, {"text", text(size)}}
}

func randomBytes(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// text returns words of a skewed distribution, in lines.
func text(size int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 5000)
	for i := range words {
		w := make([]byte, 2+rng.IntN(9))
		for j := range w {
			w[j] = "etaoinshrdlucmfwypvbgk"[min(rng.IntN(22), rng.IntN(22))]
		}
		words[i] = w
	}
	b := make([]byte, 0, size+16)
	for n := 0; len(b) < size; n++ {
		b = append(b, words[min(rng.IntN(5000), rng.IntN(5000), rng.IntN(5000))]...)
		b = append(b, " \n"[min(n%12/11, 1)])
	}
	return b[:size]
}

// A contender cuts data and returns the number of chunks; 0 if it only reads.
type contender struct {
	name string
	cut  func(data []byte) (chunks int, err error)
}

type result struct {
	Name    string  `json:"name"`
	Average int     `json:"average"`
	Data    string  `json:"data"`
	Mean    int     `json:"mean"`
	Speed   float64 `json:"bytes_per_cpu_s"`
	Wall    float64 `json:"bytes_per_s"`
}

// compare lets all contenders cut in turns, so that what else the machine does
// meets all of them.
func compare(in input, avg, rounds int) []result {
	contenders := contenders(avg)
	speeds := make([][]float64, len(contenders))
	walls := make([][]float64, len(contenders))
	results := make([]result, len(contenders))
	for range rounds {
		for i, c := range contenders {
			start, startWall := cpuTime(), time.Now()
			chunks, err := c.cut(in.data)
			if err != nil {
				log.Fatalf("%s: %v", c.name, err)
			}
			speeds[i] = append(speeds[i], float64(len(in.data))/(cpuTime()-start).Seconds())
			walls[i] = append(walls[i], float64(len(in.data))/time.Since(startWall).Seconds())
			results[i] = result{Name: c.name, Average: avg, Data: in.name, Mean: len(in.data) / max(chunks, 1)}
		}
	}
	for i := range results {
		slices.Sort(speeds[i])
		slices.Sort(walls[i])
		results[i].Speed, results[i].Wall = speeds[i][rounds/2], walls[i][rounds/2]
		fmt.Printf("%-24s %-7s %8d  mean %9d  %7.2f GB/cpu-s %7.2f GB/s\n",
			results[i].Name, in.name, avg, results[i].Mean, results[i].Speed/1e9, results[i].Wall/1e9)
	}
	return results
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func contenders(avg int) []contender {
	kib := avg >> 10
	gfd, gear, rabin := fmt.Sprintf("GFD-%d", kib), fmt.Sprintf("Gear-%d", kib), fmt.Sprintf("TTTD-%d-Rabin", kib)
	cs := []contender{
		{"read memory", func(data []byte) (int, error) { chunking.ReadMemory(data); return 0, nil }},
		{gfd + " scan", scan(gfd)},
	}
	for _, kernel := range chunking.Kernels() {
		cs = append(cs, contender{gfd + " " + kernel, ends(gfd, kernel)})
	}
	fastest := chunking.Kernels()[0]
	return append(cs,
		contender{gfd + " workers", workers(gfd)},
		contender{gfd + " reader", reader(gfd)},
		contender{fmt.Sprintf("Typed-%d", kib), ends(fmt.Sprintf("Typed-%d", kib), fastest)},
		contender{gear, ends(gear, fastest)},
		contender{rabin, ends(rabin, fastest)},
		contender{rabin + " sequential", ends(rabin, "generic")},
		contender{"plakar fastcdc", plakar("fastcdc", avg)},
		contender{"plakar kfastcdc", plakar("kfastcdc", avg)},
		contender{"plakar fastcdc-v1.0.0", plakar("fastcdc-v1.0.0", avg)},
		contender{"plakar jc-v1.1.0", plakar("jc-v1.1.0", avg)},
		contender{"jotfs fastcdc", jotfs(avg)},
		contender{"restic rabin", restic(avg)},
	)
}

func newChunker(name string) chunking.Chunker {
	c, err := chunking.New(name, make([]byte, 32))
	if err != nil {
		log.Fatal(err)
	}
	return c
}

func scan(name string) func([]byte) (int, error) {
	c := newChunker(name)
	return func(data []byte) (int, error) { return chunking.Scan(c, data), nil }
}

func ends(name, kernel string) func([]byte) (int, error) {
	c, err := chunking.WithKernel(newChunker(name), kernel)
	if err != nil {
		log.Fatal(err)
	}
	var dst []int
	return func(data []byte) (int, error) {
		dst = c.Ends(dst[:0], data, true)
		return len(dst), nil
	}
}

// workers cuts with all processors, four segments each.
func workers(name string) func([]byte) (int, error) {
	c := newChunker(name)
	procs := runtime.GOMAXPROCS(0)
	var dst []int
	return func(data []byte) (int, error) {
		plan := chunking.Plan{Workers: procs, Segment: len(data)/(4*procs) + 1}
		dst = plan.Ends(c, dst[:0], data, true)
		return len(dst), nil
	}
}

func reader(name string) func([]byte) (int, error) {
	r := chunking.NewReader(nil, newChunker(name))
	return func(data []byte) (int, error) {
		r.Reset(bytes.NewReader(data))
		return count(func() error { _, err := r.Next(); return err })
	}
}

func plakar(algorithm string, avg int) func([]byte) (int, error) {
	return func(data []byte) (int, error) {
		opts := &cdc.ChunkerOpts{MinSize: avg / 4, NormalSize: avg, MaxSize: 8 * avg}
		if algorithm == "kfastcdc" {
			opts.Key = make([]byte, 32)
		}
		c, err := cdc.NewChunker(algorithm, bytes.NewReader(data), opts)
		if err != nil {
			return 0, err
		}
		return count(func() error { _, err := c.Next(); return err })
	}
}

func jotfs(avg int) func([]byte) (int, error) {
	return func(data []byte) (int, error) {
		c, err := fastcdc.NewChunker(bytes.NewReader(data), fastcdc.Options{AverageSize: avg, MinSize: avg / 4, MaxSize: 8 * avg})
		if err != nil {
			return 0, err
		}
		return count(func() error { _, err := c.Next(); return err })
	}
}

func restic(avg int) func([]byte) (int, error) {
	bits := 0
	for 1<<bits < avg {
		bits++
	}
	buf := make([]byte, 8*avg)
	return func(data []byte) (int, error) {
		c := chunker.NewWithBoundaries(bytes.NewReader(data), chunker.Pol(0x3DA3358B4DC173), uint(avg/4), uint(8*avg))
		c.SetAverageBits(bits)
		return count(func() error { _, err := c.Next(buf); return err })
	}
}

// count calls next until the end of the stream.
func count(next func() error) (n int, err error) {
	for ; ; n++ {
		if err := next(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}
