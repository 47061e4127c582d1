package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func randomID(rng *rand.Rand) ID { return ID(randomBytes(rng, len(ID{}))) }

// randomHints returns n hints, some of which are empty or in one multichunk.
func randomHints(rng *rand.Rand, n int) []Hint {
	hints := make([]Hint, n)
	for i := range hints {
		if rng.IntN(4) > 0 {
			hints[i] = Hint{Multichunk: Name(randomBytes(rng, 16)), Off: rng.Uint32(), Len: rng.Uint32()}
		}
		if i > 0 && !hints[i].IsZero() && !hints[i-1].IsZero() {
			hints[i].Multichunk = hints[i-1].Multichunk
		}
	}
	return hints
}

// randomNode returns a node as a reader gives it: empty values and references are nil.
func randomNode(rng *rand.Rand) *Node {
	hints := randomHints(rng, 1+rng.IntN(8))
	n := &Node{Level: uint8(rng.IntN(4))}
	keys := map[string]bool{}
	for range 1 + rng.IntN(40) {
		key := randomBytes(rng, rng.IntN(20))
		for i := range key {
			key[i] &= 3 // so that keys share prefixes
		}
		keys[string(key)] = true
	}
	for key := range keys {
		e := Entry{Key: []byte(key)}
		if size := rng.IntN(100) - 20; size > 0 {
			e.Value = randomBytes(rng, size)
		}
		for range rng.IntN(4) {
			e.Refs = append(e.Refs, Ref{ID: randomID(rng), Kind: RefKind(rng.IntN(2)), Hint: hints[rng.IntN(len(hints))]})
		}
		n.Entries = append(n.Entries, e)
	}
	slices.SortFunc(n.Entries, func(a, b Entry) int { return bytes.Compare(a.Key, b.Key) })
	return n
}

// leafNode is like a leaf of inodes and directory entries: n records.
func leafNode(n int) *Node {
	rng := rand.New(rand.NewPCG(1, 2))
	node := &Node{}
	for i := range n {
		key := binary.BigEndian.AppendUint64(nil, uint64(1<<35+i))
		e := Entry{Key: append(key, 1), Value: randomBytes(rng, 40)}
		e.Refs = []Ref{{ID: randomID(rng), Hint: Hint{Multichunk: Name{byte(i / 20)}, Off: uint32(i / 20), Len: 9}}}
		node.Entries = append(node.Entries, e)
	}
	return node
}

func TestNodeRoundTrip(t *testing.T) {
	rng := newRand(t)
	for range 2000 {
		n := randomNode(rng)
		b := AppendNode([]byte("before"), n)[len("before"):]
		got, err := ParseNode(b)
		if err != nil {
			t.Fatalf("ParseNode: %v", err)
		}
		if !reflect.DeepEqual(got, n) {
			t.Fatalf("ParseNode of %x gives another node", b)
		}
		canonical := AppendCanonical(nil, n)
		if !bytes.HasPrefix(b, canonical) {
			t.Fatal("the encoding does not begin with the canonical part")
		}
		if size, err := canonicalSize(b); err != nil || size != len(canonical) {
			t.Fatalf("canonicalSize = %d, %v, want %d", size, err, len(canonical))
		}
	}
}

// TestNodeLimits checks that the largest of everything goes through.
func TestNodeLimits(t *testing.T) {
	n := &Node{Level: 255}
	for i := range 40 {
		key := bytes.Repeat([]byte{byte(i)}, MaxKey)
		n.Entries = append(n.Entries, Entry{Key: key, Value: make([]byte, MaxValue)})
	}
	got, err := ParseNode(AppendNode(nil, n))
	if err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("ParseNode of the largest keys and values: %v", err)
	}
}

// TestNodeHintsDoNotCount checks that the id of a node is that of its content.
func TestNodeHintsDoNotCount(t *testing.T) {
	r := newTestRepository(t, testConfig)
	rng := newRand(t)
	n := randomNode(rng)
	n.Entries[0].Refs = []Ref{{ID: randomID(rng)}}
	id := r.NodeID(AppendCanonical(nil, n))
	for _, hint := range randomHints(rng, 10) {
		n.Entries[0].Refs[0].Hint = hint
		got, err := r.CheckNode(id, AppendNode(nil, n))
		if err != nil {
			t.Fatalf("CheckNode with hint %v: %v", hint, err)
		}
		if got.Entries[0].Refs[0].Hint != hint {
			t.Errorf("hint = %v, want %v", got.Entries[0].Refs[0].Hint, hint)
		}
	}
	n.Entries[0].Refs[0].ID[0] ^= 1
	if _, err := r.CheckNode(id, AppendNode(nil, n)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("CheckNode of another node: %v, want %v", err, ErrCorrupt)
	}
}

// TestNodeExample checks the worked example in FORMAT.md.
func TestNodeExample(t *testing.T) {
	ref := Ref{ID: ID(bytes.Repeat([]byte{0x11}, 32)), Hint: Hint{Multichunk: Name(bytes.Repeat([]byte{0x22}, 16)), Off: 16, Len: 7}}
	n := &Node{Entries: []Entry{{Key: []byte("ab"), Value: []byte("x")}, {Key: []byte("ac"), Refs: []Ref{ref}}}}
	canonical := "00 02 0001 0201 0100 0001 616263 78 00" + strings.Repeat("11", 32)
	hints := "01" + strings.Repeat("22", 16) + "00000010 00000007 0101"
	if got := AppendCanonical(nil, n); !bytes.Equal(got, unhex(t, canonical)) || len(got) != 47 {
		t.Errorf("canonical part of %d bytes: %x", len(got), got)
	}
	if got := AppendNode(nil, n); !bytes.Equal(got, unhex(t, canonical+hints)) {
		t.Errorf("AppendNode = %x", got)
	}
}

func TestParseNodeRefuses(t *testing.T) {
	zeros := func(n int) string { return fmt.Sprintf("%0*x", 2*n, 0) }
	for _, test := range []struct{ name, hex string }{
		{"nothing", ""},
		{"no entries", "00 00 00"},
		{"entries that are not there", "00 05 00"},
		{"number of entries in two bytes", "00 8100 00 01 00 00 61 00"},
		{"prefix of nothing", "00 01 01 01 00 00 61 00"},
		{"equal keys", "00 02 00 01 01 00 00 00 00 00 61 00"},
		{"keys out of order", "00 02 00 00 01 01 00 00 00 00 62 61 00"},
		{"prefix shorter than it could be", "00 02 00 00 01 02 00 00 00 00 61 6162 00"},
		{"reference of kind 2", "00 01 00 01 00 01 61 02" + zeros(32) + "00 01 00"},
		{"hint that is not there", "00 01 00 01 00 01 61 00" + zeros(32) + "00 01 01"},
		{"hint that is not used", "00 01 00 01 00 01 61 00" + zeros(32) + "01 01" + zeros(23) + "01 00"},
		{"empty hint", "00 01 00 01 00 01 61 00" + zeros(32) + "01" + zeros(24) + "01 01"},
		{"no hints", "00 01 00 01 00 01 61 00" + zeros(32) + "00"},
		{"empty run", "00 01 00 01 00 01 61 00" + zeros(32) + "00 00 00 01 00"},
		{"run too long", "00 01 00 01 00 01 61 00" + zeros(32) + "00 02 00"},
		{"bytes behind the end", "00 01 00 01 00 00 61 00 00"},
	} {
		b := unhex(t, test.hex)
		if n, err := ParseNode(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: ParseNode = %v, %v, want %v", test.name, n, err, ErrCorrupt)
		}
	}
	if _, err := ParseNode(unhex(t, "00 01 00 01 00 01 61 00"+zeros(32)+"00 01 00")); err != nil {
		t.Errorf("a node like these but whole: %v", err)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAppendNodePanics(t *testing.T) {
	big := make([]byte, MaxValue+1)
	many := make([]Entry, MaxNode/MaxValue+1)
	for i := range many {
		many[i] = Entry{Key: []byte{byte(i)}, Value: big[:MaxValue]}
	}
	for name, entries := range map[string][]Entry{
		"no entries":   nil,
		"unsorted":     {{Key: []byte("b")}, {Key: []byte("a")}},
		"equal keys":   {{Key: []byte("a")}, {Key: []byte("a")}},
		"long key":     {{Key: big[:MaxKey+1]}},
		"long value":   {{Key: big[:1], Value: big}},
		"many entries": many,
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("AppendNode did not panic")
				}
			}()
			AppendNode(nil, &Node{Entries: entries})
		})
	}
}

// FuzzParseNode checks that what is parsed is encoded as it was, so that a node has one canonical encoding, and that
// garbage does not make the parser take much memory.
func FuzzParseNode(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 10 {
		f.Add(AppendNode(nil, randomNode(rng)))
	}
	f.Add(AppendNode(nil, leafNode(3)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var n *Node
		var err error
		// A key of MaxKey bytes may take five bytes, and an entry a few more in memory.
		limitAllocs(t, 256<<10+len(b)*(MaxKey+128)/4, func() { n, err = ParseNode(b) })
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("ParseNode: %v, want %v", err, ErrCorrupt)
			}
			return
		}
		canonical := AppendCanonical(nil, n)
		if !bytes.HasPrefix(b, canonical) {
			t.Fatalf("canonical part of %x is encoded again as %x", b, canonical)
		}
		again, err := ParseNode(AppendNode(nil, n))
		if err != nil || !reflect.DeepEqual(again, n) {
			t.Fatalf("%+v became %+v, %v", n, again, err)
		}
	})
}

func BenchmarkParseNode(b *testing.B) {
	for _, entries := range []int{10, 100, 400} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			encoded := AppendNode(nil, leafNode(entries))
			b.SetBytes(int64(len(encoded)))
			b.ReportAllocs()
			end := reportCPU(b)
			for b.Loop() {
				if _, err := ParseNode(encoded); err != nil {
					b.Fatal(err)
				}
			}
			end(len(encoded))
		})
	}
}

func BenchmarkAppendNode(b *testing.B) {
	n := leafNode(100)
	encoded := AppendNode(nil, n)
	b.SetBytes(int64(len(encoded)))
	b.ReportAllocs()
	for b.Loop() {
		encoded = AppendNode(encoded[:0], n)
	}
}
