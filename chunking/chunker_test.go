package chunking

import (
	"testing"
)

// allNames lists one chunker of every family, and sizes that differ in kind.
var allNames = []string{
	"GFD-1", "GFD-2", "GFD-4", "GFD-8", "GFD-64", "Gear-4", "Fixed-4", "Fixed-3", "Whole",
}

func allChunkers(t testing.TB, key []byte) (cs []Chunker) {
	t.Helper()
	for _, name := range allNames {
		c, err := New(name, key)
		if err != nil {
			t.Fatal(err)
		}
		cs = append(cs, c)
	}
	return cs
}
