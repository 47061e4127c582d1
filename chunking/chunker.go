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
// particular kind. docs/chunking.md tells how it was chosen.
const Default = "Typed-8"

// repoMax is the largest chunk that a repository takes, in bytes. Chunkers
// that have no bound of their own cut there, unless they are Unbounded.
const repoMax = 512 << 10

// known lists the names that New takes, by their shape.
const known = "GFD-N, Gear-N, TTTD-N-Adler32, TTTD-N-PLAIN, TTTD-N-Rabin, BSW-N, BSW-N-Unbounded, Typed-N, Fixed-N, Whole, Whole-Unbounded; " +
	"N is the mean size in KiB, a power of two up to 1024, and for Fixed any number up to that"

// New returns the chunker called name. Those with a key, GFD, Typed and Gear,
// need one of 32 bytes; the others ignore it. An unknown name is answered with
// the known ones.
func New(name string, key []byte) (Chunker, error) {
	shape, size := splitName(name)
	switch shape {
	case "Whole":
		return fixed{name, repoMax}, nil
	case "Whole-Unbounded":
		return fixed{name, math.MaxInt}, nil
	case "Fixed-N":
		return fixed{name, size}, nil
	}
	if size&(size-1) != 0 {
		shape = ""
	}
	switch shape {
	case "GFD-N":
		return newGFD(name, size, key)
	case "Gear-N":
		return newGear(name, size, key)
	case "Typed-N":
		return newTyped(name, size, key)
	case "TTTD-N-Adler32", "TTTD-N-PLAIN", "TTTD-N-Rabin":
		return newTTTD(name, size), nil
	case "BSW-N":
		return newBSW(name, size, repoMax), nil
	case "BSW-N-Unbounded":
		return newBSW(name, size, math.MaxInt), nil
	}
	return nil, fmt.Errorf("unknown chunker %q; known are %s", name, known)
}

// splitName returns name with its size replaced by N, and the size in bytes.
func splitName(name string) (shape string, size int) {
	parts := strings.Split(name, "-")
	if len(parts) > 1 {
		kib, err := strconv.Atoi(parts[1])
		if err == nil && kib >= 1 && kib <= 1024 && strconv.Itoa(kib) == parts[1] {
			parts[1], size = "N", kib<<10
		}
	}
	return strings.Join(parts, "-"), size
}

// checkKey returns an error unless key is one that the chunker called name can
// be made with.
func checkKey(name string, key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("chunker %s: key of %d bytes, want %d", name, len(key), keySize)
	}
	return nil
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
