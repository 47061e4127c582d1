package chunking

import (
	"bytes"
	"slices"
	"testing"
)

// chunkSet is an Index in memory.
type chunkSet map[string]bool

func (s chunkSet) Has(chunk []byte) (bool, error) { return s[string(chunk)], nil }

func TestTwoSize(t *testing.T) {
	rng := newRand(t)
	key := randomKey(rng)
	index := chunkSet{}
	two := TwoSize{Large: newChunker(t, "GFD-64", key), Small: newChunker(t, "GFD-4", key), Index: index}
	cut := func(data []byte) (chunks [][]byte) {
		t.Helper()
		var all []byte
		err := two.Cut(bytes.NewReader(data), func(chunk []byte) error {
			chunks = append(chunks, slices.Clone(chunk))
			all = append(all, chunk...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(all, data) {
			t.Fatal("the chunks are not the data")
		}
		return chunks
	}
	largest := func(chunks [][]byte) (small, large int) {
		for _, c := range chunks {
			if len(c) <= 8<<10 {
				small++
			} else {
				large++
			}
		}
		return small, large
	}

	data := sample(rng, "random", 8<<20)
	chunks := cut(data)
	if small, _ := largest(chunks); small > 1 {
		t.Errorf("new data: %d small chunks", small)
	}
	for _, c := range chunks {
		index[string(c)] = true
	}
	// A change in the middle: only its large chunk and the new ones beside it
	// are cut small.
	copy(data[4<<20:], "changed")
	small, large := largest(cut(data))
	if small < 4 || small > 100 {
		t.Errorf("around a change: %d small chunks", small)
	}
	if large < len(chunks)*9/10 {
		t.Errorf("around a change: %d large chunks of %d are left", large, len(chunks))
	}
}
