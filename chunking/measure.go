package chunking

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// ReadMemory reads every byte of data, as fast as this machine can: what no
// chunker of the same data can exceed unless it skips. It is for measuring.
func ReadMemory(data []byte) {
	n := len(data) &^ 255
	if n > 0 {
		readMemory(data[:n])
	}
	readGeneric(data[n:])
}

// Scan runs the first stage of c over all of data, nothing skipped, and
// returns the number of marks, or -1 if c has no such stage. It is for
// measuring.
func Scan(c Chunker, data []byte) int {
	t, ok := c.(*twoStage)
	if !ok {
		return -1
	}
	marks := 0
	for from := t.mark.reach(); from <= len(data); marks++ {
		end := nextMark(t.mark, data, from)
		if end < 0 {
			break
		}
		from = end + 1
	}
	return marks
}

// nextMark returns the end of the first mark from on, or -1. Ranks belong to
// the second stage if they can be had later.
func nextMark(m marker, data []byte, from int) int {
	if g, ok := m.(*gfd); ok {
		i := g.scan(data, from-1, len(data), g.key)
		if i < 0 {
			return -1
		}
		return i + 1
	}
	end, _ := m.next(data, from, len(data))
	return end
}

// Kernels names the implementations of GFD's first stage that this machine can
// run, the fastest, which New takes, first. The last is "generic".
func Kernels() []string {
	var names []string
	for _, s := range gfdScanners {
		names = append(names, s.name)
	}
	return names
}

// WithKernel returns c with another kernel, one of Kernels. It cuts alike. Of
// the other chunkers only Rabin's has kernels: "generic" is the sequential one.
// It is for measuring and for tests.
func WithKernel(c Chunker, kernel string) (Chunker, error) {
	i := slices.Index(Kernels(), kernel)
	if i < 0 {
		return nil, fmt.Errorf("no kernel %q here; there are %s", kernel, strings.Join(Kernels(), ", "))
	}
	switch c := c.(type) {
	case typed:
		return typed{withKernel(c.inner, gfdScanners[i])}, nil
	case *twoStage:
		return withKernel(c, gfdScanners[i]), nil
	}
	return c, nil
}

func withKernel(c *twoStage, s gfdScanner) *twoStage {
	other := *c
	switch m := c.mark.(type) {
	case *gfd:
		other.mark = &gfd{m.key, s.scan}
	case *rabin:
		r := *m
		r.blocks = r.blocks && s.name != "generic"
		other.mark = &r
	}
	return &other
}

// sink keeps reads from being optimised away.
var sink uint64

func readGeneric(data []byte) {
	var a, b uint64
	for ; len(data) >= 16; data = data[16:] {
		a |= binary.LittleEndian.Uint64(data)
		b |= binary.LittleEndian.Uint64(data[8:])
	}
	for _, c := range data {
		a |= uint64(c)
	}
	if a|b == 1 { // hardly ever: the sink is not contended
		sink = a
	}
}
