package seal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

var seed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of random tests")

func newRand(t *testing.T) *rand.Rand {
	t.Logf("-seed=%d", *seed)
	return rand.New(rand.NewPCG(*seed, 0))
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// withSuite returns k sealing with s.
func withSuite(k *Keyring, s Suite) *Keyring {
	c := *k
	c.suite = s
	return &c
}

var sizes = []int{0, 1, 10, SegmentSize - 1, SegmentSize, SegmentSize + 1, 2 * SegmentSize, 2*SegmentSize + 1, 300_000}

func TestSealOpen(t *testing.T) {
	r := newRand(t)
	for _, suite := range []Suite{SuiteAES, SuiteChaCha} {
		k := withSuite(NewKeyring([16]byte{1}), suite)
		for _, size := range sizes {
			plain := randomBytes(r, size)
			wire, err := k.Seal([]byte("front"), KindMultichunk, "data/ab/abcd", plain)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(wire, []byte("front")) {
				t.Fatalf("Seal did not append")
			}
			wire = wire[len("front"):]
			if len(wire) != WireSize(size) {
				t.Errorf("Seal(%d bytes) = %d bytes, WireSize says %d", size, len(wire), WireSize(size))
			}
			got, err := k.Open([]byte("front"), KindMultichunk, "data/ab/abcd", wire)
			if err != nil || !bytes.Equal(got, append([]byte("front"), plain...)) {
				t.Errorf("suite %d: Open of %d bytes = %d bytes, %v", suite, size, len(got), err)
			}
		}
	}
}

func TestSealIsFresh(t *testing.T) {
	k := NewKeyring([16]byte{1})
	a, _ := k.Seal(nil, KindCommit, "n", []byte("x"))
	b, _ := k.Seal(nil, KindCommit, "n", []byte("x"))
	if bytes.Equal(a[32:64], b[32:64]) || bytes.Equal(a[HeaderSize:], b[HeaderSize:]) {
		t.Error("two objects share a salt or a ciphertext")
	}
}

// TestOpenElsewhere opens an object as what it is not.
func TestOpenElsewhere(t *testing.T) {
	k := NewKeyring([16]byte{1})
	other := newKeyring([16]byte{2}, k.root, k.epochs)
	stranger := NewKeyring([16]byte{1})
	wire, _ := k.Seal(nil, KindCommit, "a/b", []byte("plain"))
	for name, err := range map[string]error{
		"other kind":        second(k.Open(nil, KindRegistration, "a/b", wire)),
		"other name":        second(k.Open(nil, KindCommit, "a/c", wire)),
		"other repository":  second(other.Open(nil, KindCommit, "a/b", wire)),
		"range, other name": second(k.OpenRange(bytes.NewReader(wire), -1, KindCommit, "a/c", 0, 1)),
	} {
		if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrEpoch) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	if _, err := stranger.Open(nil, KindCommit, "a/b", wire); !errors.Is(err, ErrEpoch) || !errors.Is(err, ErrCorrupt) {
		t.Errorf("other keyring: %v, want ErrEpoch", err)
	}
}

func second(_ []byte, err error) error { return err }

// TestDamage flips every bit of a small object, cuts it everywhere, and extends it.
func TestDamage(t *testing.T) {
	for _, suite := range []Suite{SuiteAES, SuiteChaCha} {
		k := withSuite(NewKeyring([16]byte{1}), suite)
		wire, _ := k.Seal(nil, KindCommit, "n", []byte("forty bytes of text that must not change"))
		check := func(what string, wire []byte) {
			t.Helper()
			if got, err := k.Open(nil, KindCommit, "n", wire); !errors.Is(err, ErrCorrupt) || len(got) != 0 {
				t.Errorf("%s: Open = %d bytes, %v, want ErrCorrupt", what, len(got), err)
			}
			if got, err := k.OpenRange(bytes.NewReader(wire), -1, KindCommit, "n", 3, 9); !errors.Is(err, ErrCorrupt) || len(got) != 0 {
				t.Errorf("%s: OpenRange = %d bytes, %v, want ErrCorrupt", what, len(got), err)
			}
		}
		for i := range len(wire) * 8 {
			bad := bytes.Clone(wire)
			bad[i/8] ^= 1 << (i % 8)
			check(fmt.Sprintf("bit %d", i), bad)
		}
		for n := range len(wire) {
			check(fmt.Sprintf("cut at %d", n), wire[:n])
		}
		for n := range 100 {
			check(fmt.Sprintf("%d bytes more", n+1), append(bytes.Clone(wire), make([]byte, n+1)...))
		}
	}
}

// TestSegments drops, doubles and swaps whole segments.
func TestSegments(t *testing.T) {
	k := NewKeyring([16]byte{1})
	wire, _ := k.Seal(nil, KindMultichunk, "n", make([]byte, 3*SegmentSize))
	head, s := wire[:HeaderSize], [3][]byte{}
	for i := range s {
		s[i] = wire[HeaderSize+i*wireSegment:][:wireSegment]
	}
	for name, order := range map[string][]int{
		"cut":          {0, 1},
		"first missed": {1, 2},
		"middle":       {0, 2},
		"swapped":      {1, 0, 2},
		"last twice":   {0, 1, 2, 2},
		"last first":   {2, 0, 1},
		"none":         {},
	} {
		bad := bytes.Clone(head)
		for _, i := range order {
			bad = append(bad, s[i]...)
		}
		if _, err := k.Open(nil, KindMultichunk, "n", bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

func TestOpenRange(t *testing.T) {
	r := newRand(t)
	k := NewKeyring([16]byte{1})
	for _, size := range sizes[1:] {
		plain := randomBytes(r, size)
		wire, _ := k.Seal(nil, KindMultichunk, "n", plain)
		for range 50 {
			off := r.IntN(size)
			n := 1 + r.IntN(size-off)
			for _, wireSize := range []int64{-1, int64(len(wire))} {
				got, err := k.OpenRange(bytes.NewReader(wire), wireSize, KindMultichunk, "n", off, n)
				if err != nil || !bytes.Equal(got, plain[off:off+n]) {
					t.Errorf("OpenRange(%d of %d bytes, wire size %d) = %d bytes, %v", n, size, wireSize, len(got), err)
				}
			}
		}
		for _, wireSize := range []int64{-1, int64(len(wire))} {
			for _, bad := range [][2]int{{0, size + 1}, {size, 1}, {0, 0}, {-1, 1}, {0, -1}, {0, 1 << 62}, {1 << 62, 1 << 62}} {
				if _, err := k.OpenRange(bytes.NewReader(wire), wireSize, KindMultichunk, "n", bad[0], bad[1]); !errors.Is(err, ErrCorrupt) {
					t.Errorf("OpenRange(%v of %d bytes) = %v, want ErrCorrupt", bad, size, err)
				}
			}
		}
	}
}

// TestOpenRangeCut shows that with the true size known, a range of an object that was cut at a segment does not open.
func TestOpenRangeCut(t *testing.T) {
	k := NewKeyring([16]byte{1})
	wire, _ := k.Seal(nil, KindMultichunk, "n", make([]byte, 3*SegmentSize))
	cut := wire[:HeaderSize+2*wireSegment]
	if _, err := k.OpenRange(bytes.NewReader(cut), int64(len(wire)), KindMultichunk, "n", 2*SegmentSize, 1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("range behind the cut: %v, want ErrCorrupt", err)
	}
	if _, err := k.OpenRange(bytes.NewReader(cut), int64(len(cut)), KindMultichunk, "n", SegmentSize, 1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("last segment before the cut: %v, want ErrCorrupt", err)
	}
}

type failingReader struct{ err error }

func (r failingReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }

func TestOpenRangeReadError(t *testing.T) {
	k := NewKeyring([16]byte{1})
	for _, off := range []int{0, SegmentSize} {
		_, err := k.OpenRange(failingReader{io.ErrClosedPipe}, -1, KindMultichunk, "n", off, 1)
		if !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrCorrupt) {
			t.Errorf("OpenRange from %d = %v, want the reader's error and not ErrCorrupt", off, err)
		}
	}
}

// TestNewer shows that an object of a newer program is told from a damaged one.
func TestNewer(t *testing.T) {
	k := NewKeyring([16]byte{1})
	for name, h := range map[string]Header{
		"format":   {Format: 2, Suite: SuiteAES},
		"suite":    {Format: 1, Suite: 3},
		"reserved": {Format: 1, Suite: SuiteAES, reserved: [3]byte{0, 1}},
		"refuse":   {Format: 1, Suite: SuiteAES, Features: Features{Refuse: 1 << 31}},
	} {
		h.Epoch = k.current
		wire, err := k.seal(nil, &h, KindCommit, "n", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Open(nil, KindCommit, "n", wire); !errors.Is(err, ErrFormat) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
	wire, _ := k.SealFeatures(nil, KindCommit, "n", []byte("x"), Features{Ignore: 1, ReadOnly: 2})
	if _, err := k.Open(nil, KindCommit, "n", wire); err != nil {
		t.Errorf("ignorable features: %v", err)
	}
}

func TestEpochs(t *testing.T) {
	old := NewKeyring([16]byte{1})
	wire, _ := old.Seal(nil, KindCommit, "n", []byte("x"))
	next := newKeyring(old.repository, old.root, map[Epoch]Key{newEpoch(2): randomKey()})
	both := old.Union(next)
	if _, err := both.Open(nil, KindCommit, "n", wire); err != nil {
		t.Errorf("object of the old epoch: %v", err)
	}
	newer, _ := both.Seal(nil, KindCommit, "n", []byte("x"))
	if _, err := old.Open(nil, KindCommit, "n", newer); !errors.Is(err, ErrEpoch) {
		t.Errorf("object of the new epoch with the old keyring: %v, want ErrEpoch", err)
	}
	if old.Derive("a") != both.Derive("a") || old.Derive("a") == old.Derive("b") {
		t.Error("derived keys depend on more or less than the root and the purpose")
	}
}

func TestSizes(t *testing.T) {
	for _, plain := range []int{0, 1, SegmentSize - 1, SegmentSize, SegmentSize + 1, MaxPlain - 1, MaxPlain} {
		if got, err := PlainSize(WireSize(plain)); err != nil || got != plain {
			t.Errorf("PlainSize(WireSize(%d)) = %d, %v", plain, got, err)
		}
	}
	for _, wire := range []int{-1, 0, HeaderSize, HeaderSize + 15, HeaderSize + wireSegment + 1, HeaderSize + wireSegment + 16, maxWire + 1, 1 << 62} {
		if got, err := PlainSize(wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("PlainSize(%d) = %d, %v, want ErrCorrupt", wire, got, err)
		}
	}
}

func TestPadSize(t *testing.T) {
	for wire, want := range map[int]int{0: 4096, 4096: 4096, 4097: 8192, 8193: 16 << 10, 16<<10 + 1: 24 << 10, 65536: 65536, 65537: 73728, 73729: 81920, 200_000: 200 << 10, 256<<10 + 1: 264 << 10, 512<<10 + 1: 528 << 10, 8 << 20: 8 << 20, 8<<20 + 1: 8448 << 10} {
		if got := PadSize(wire); got != want {
			t.Errorf("PadSize(%d) = %d, want %d", wire, got, want)
		}
	}
	for wire := 1; wire < 80<<20; wire += 1 + wire/50 {
		size := PadSize(wire)
		if size < wire || size > 64<<10 && (size-wire)*8 > size || size > 256<<10 && (size-wire)*32 > size {
			t.Fatalf("PadSize(%d) = %d", wire, size)
		}
		if PadSize(size) != size {
			t.Fatalf("PadSize(%d) = %d: not idempotent", size, PadSize(size))
		}
		if _, err := PlainSize(size); err != nil {
			t.Fatalf("PadSize(%d) = %d: %v", wire, size, err)
		}
	}
}

func TestPadded(t *testing.T) {
	k := NewKeyring([16]byte{1})
	for _, size := range []int{0, 1, 3980, 3981, 100_000} {
		wire, err := k.SealPadded(KindCommit, "n", make([]byte, size), Features{})
		if err != nil {
			t.Fatal(err)
		}
		if len(wire) != PadSize(len(wire)) {
			t.Errorf("SealPadded(%d bytes) = %d bytes on the wire, not a padded length", size, len(wire))
		}
		got, _, err := k.OpenPadded(KindCommit, "n", wire)
		if err != nil || len(got) != size {
			t.Errorf("OpenPadded of %d bytes = %d bytes, %v", size, len(got), err)
		}
	}
	lying, _ := k.Seal(nil, KindCommit, "n", []byte{255, 255, 255, 255, 1})
	if _, _, err := k.OpenPadded(KindCommit, "n", lying); !errors.Is(err, ErrCorrupt) {
		t.Errorf("length beyond the end: %v, want ErrCorrupt", err)
	}
}

func BenchmarkSeal(b *testing.B) {
	k, plain := NewKeyring([16]byte{1}), make([]byte, 8<<20)
	b.SetBytes(int64(len(plain)))
	var wire []byte
	for b.Loop() {
		wire, _ = k.Seal(wire[:0], KindMultichunk, "data/ab/abcd", plain)
	}
}

func BenchmarkOpen(b *testing.B) {
	k := NewKeyring([16]byte{1})
	wire, _ := k.Seal(nil, KindMultichunk, "n", make([]byte, 8<<20))
	b.SetBytes(8 << 20)
	var plain []byte
	for b.Loop() {
		plain, _ = k.Open(plain[:0], KindMultichunk, "n", wire)
	}
}
