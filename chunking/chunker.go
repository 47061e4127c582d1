package chunking

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Chunker decides where a stream is cut. It is safe for concurrent use and
// holds no data of the stream.
//
// The end of a chunk depends only on the bytes from the chunk's start, on at
// most max of them, and on whether the stream ends among these. Everything
// else in this package rests on that: cutting in parallel, cutting again
// around a change, and sharing between streams.
type Chunker interface {
	// Name is the name that New takes, such as "GFD-8".
	Name() string

	// Bounds returns the smallest and largest chunk in bytes. Only the last
	// chunk of a stream may be smaller than min.
	Bounds() (min, max int)

	// Ends appends to dst the end of every chunk that data decides, as an
	// offset into data, and returns the extended slice.
	//
	// data begins at the start of a chunk. With eof it is all that is left of
	// the stream, and the last end is len(data). Without eof the undecided
	// tail is left to the next call, which begins where the last chunk ended;
	// max bytes always decide at least one chunk.
	Ends(dst []int, data []byte, eof bool) []int
}

// Default names the chunker that a new repository uses for files of no
// particular kind.
const Default = "GFD-8"

// repoMax is the largest chunk of the chunkers meant for repositories. Those
// that have no bound of their own are cut there, unless they are Unbounded.
const repoMax = 512 << 10

// unbounded ends the names of chunkers that are not cut at repoMax.
const unbounded = "-Unbounded"

// known lists the names that New takes, N being a mean size in KiB.
const known = "GFD-N, Gear-N, BSW-N, BSW-N-Unbounded, TTTD-N-Adler32, TTTD-N-PLAIN, TTTD-N-Rabin, Typed-N (N = 1, 2, 4 ... 1024), Fixed-N (N = 1 ... 1024), Whole, Whole-Unbounded"

// New returns the chunker called name. Keyed chunkers need a key of 32 bytes;
// the others ignore it. An unknown name is answered with the known ones.
func New(name string, key []byte) (Chunker, error) {
	unknown := fmt.Errorf("unknown chunker %q; known are %s", name, known)
	kind, rest, _ := strings.Cut(name, "-")
	limit := repoMax
	if base, ok := strings.CutSuffix("-"+rest, unbounded); ok {
		limit, rest = math.MaxInt, strings.TrimPrefix(base, "-")
	}
	if kind == "Whole" && rest == "" {
		return fixed{name, limit}, nil
	}
	size, print, _ := strings.Cut(rest, "-")
	kib, err := strconv.Atoi(size)
	if err != nil || kib < 1 || kib > 1024 || strconv.Itoa(kib) != size {
		return nil, unknown
	}
	if kind == "Fixed" && print == "" && limit == repoMax {
		return fixed{name, kib << 10}, nil
	}
	if kib&(kib-1) != 0 {
		return nil, unknown
	}
	if kind == "GFD" && print == "" && limit == repoMax {
		return newGFD(name, kib<<10, key)
	}
	if kind == "Gear" && print == "" && limit == repoMax {
		return newGear(name, kib<<10, key)
	}
	return nil, unknown
}

// fixed cuts every size bytes. A size that no file reaches leaves files whole.
type fixed struct {
	name string
	size int
}

func (c fixed) Name() string           { return c.name }
func (c fixed) Bounds() (min, max int) { return c.size, c.size }

func (c fixed) Ends(dst []int, data []byte, eof bool) []int {
	start := 0
	for len(data)-start >= c.size {
		start += c.size
		dst = append(dst, start)
	}
	if eof && start < len(data) {
		dst = append(dst, len(data))
	}
	return dst
}
