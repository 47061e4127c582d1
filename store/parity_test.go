package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// newParitySample is newSample with 5% of parity.
func newParitySample(t testing.TB, rng *rand.Rand) *sample {
	t.Helper()
	st := remotetest.NewMem()
	cfg := Config{MultichunkSize: 256 << 10, GroupSize: 8 << 10, SettleTime: NoSettleTime, Parity: 50}
	r, _, err := Init(t.Context(), st, password, &InitOptions{Config: cfg, KDF: cheapKDF})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{r: r, st: st, owner: map[ID][]string{}}
	if s.reg, s.key, err = r.Register(t.Context(), NewClientID(), "host"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.commit(t, rng)
	}
	return s
}

// TestParityMends destroys up to as many segments as there are parity segments, and one more.
func TestParityMends(t *testing.T) {
	rng := newRand(t)
	n := newName()
	for _, size := range []int{seal.MinWire, 73_728, 1 << 20, 8 << 20} {
		wire := randomBytes(rng, size)
		b, err := makeParity(n, wire, 50)
		if err != nil {
			t.Fatal(err)
		}
		p, err := parseParity(n, b)
		if err != nil || !p.intact() || !p.matches(wire) {
			t.Fatalf("parity of %d bytes: %v", size, err)
		}
		_, segments := segmentsOf(wire)
		parts := len(p.segments)
		if want := (len(segments)*50 + 999) / 1000; parts != max(1, want) {
			t.Errorf("%d parity segments for %d, want %d", parts, len(segments), want)
		}
		rounds := 20
		if long {
			rounds = 500
		}
		for range rounds {
			for _, lose := range []int{1, max(1, len(segments)*2/100), parts, parts + 1} {
				damaged := bytes.Clone(wire)
				for _, i := range rng.Perm(len(segments))[:min(lose, len(segments))] {
					at := seal.HeaderSize + i*sealedSegment
					for j := at; j < min(at+sealedSegment, size); j++ {
						damaged[j] ^= byte(1 + rng.IntN(255))
					}
				}
				damaged[rng.IntN(seal.HeaderSize)] ^= 1
				got, err := p.mend(damaged)
				if lose > parts && lose <= len(segments) {
					if !errors.Is(err, ErrCorrupt) {
						t.Fatalf("%d of %d segments lost with %d of parity: %v", lose, len(segments), parts, err)
					}
				} else if err != nil || !bytes.Equal(got, wire) {
					t.Fatalf("%d of %d segments lost with %d of parity: %v", lose, len(segments), parts, err)
				}
			}
		}
		if got, err := p.mend(append(bytes.Clone(wire), 1, 2, 3)); err != nil || !bytes.Equal(got, wire) {
			t.Errorf("bytes appended: %v", err)
		}
		if len(segments) > 1 {
			if got, err := p.mend(wire[:size-10]); err != nil || !bytes.Equal(got, wire) {
				t.Errorf("bytes cut off: %v", err)
			}
		}
	}
}

// TestParityHeads damages a parity object: one intact head is enough, and damaged parity segments are left out.
func TestParityHeads(t *testing.T) {
	rng := newRand(t)
	n := newName()
	wire := randomBytes(rng, 1<<20)
	b, err := makeParity(n, wire, 200)
	if err != nil {
		t.Fatal(err)
	}
	head := len(b) % paritySegment / 2
	for _, at := range []int{0, head - 1, rng.IntN(head)} {
		for _, both := range []bool{false, true} {
			damaged := bytes.Clone(b)
			damaged[at] ^= 1
			if both {
				damaged[len(damaged)-head+at] ^= 1
			}
			p, err := parseParity(n, damaged)
			if both != (err != nil) || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("byte %d damaged, in both heads: %v: %v", at, both, err)
			}
			if err == nil && !p.matches(wire) {
				t.Errorf("byte %d: parity does not match", at)
			}
		}
	}
	damaged := bytes.Clone(b)
	damaged[head+5] ^= 1
	p, err := parseParity(n, damaged)
	if err != nil || p.intact() || p.segments[0] != nil || p.segments[1] == nil {
		t.Errorf("a parity segment is damaged: %v", err)
	}
	if _, err := parseParity(newName(), b); !errors.Is(err, ErrCorrupt) {
		t.Errorf("parity of another multichunk: %v", err)
	}
}

// TestParityRepair damages multichunks beyond what a segment holds, and repairs them by parity alone.
func TestParityRepair(t *testing.T) {
	rng := newRand(t)
	s := newParitySample(t, rng)
	if len(s.st.InDir(parityDir)) != 0 {
		t.Fatal("the packer of this test puts no parity")
	}
	report, err := s.r.Repair(t.Context(), &RepairOptions{Check: *readData})
	s.must(t, err)
	if n := len(s.st.InDir(dataDir)); report.Parity != n || len(s.st.InDir(parityDir)) != n {
		t.Fatalf("%d of %d multichunks have parity", report.Parity, n)
	}
	intact := s.objects()
	for _, name := range s.st.InDir(dataDir) {
		for _, at := range []int{20, seal.HeaderSize + 7} {
			s.st.Damage(name, func(b []byte) []byte { b[at] ^= 1; return b })
			if r := s.check(t, readData); len(r.Damages) != 1 || !r.Damages[0].Repairable {
				t.Fatalf("check of %s: %+v", name, r.Damages)
			}
			report, err := s.r.Repair(t.Context(), &RepairOptions{Check: *readData})
			s.must(t, err)
			if len(report.Left) > 0 {
				t.Fatalf("repair of %s: %+v", name, report)
			}
		}
	}
	for _, name := range s.st.InDir(parityDir) {
		s.st.Damage(name, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		if r := s.check(t, readData); len(r.Damages) != 1 || r.Damages[0].Object != name || !r.Damages[0].Repairable {
			t.Fatalf("check of %s: %+v", name, r.Damages)
		}
		_, err := s.r.Repair(t.Context(), &RepairOptions{Check: *readData})
		s.must(t, err)
	}
	for name, b := range s.objects() {
		if intact[name] != b {
			t.Errorf("%s is not what it was", name)
		}
	}
}

// FuzzParity feeds parity objects to the parser and to what uses them.
func FuzzParity(f *testing.F) {
	n := Name{1}
	b, err := makeParity(n, make([]byte, 200_000), 300)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte("dedupfs"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := parseParity(n, b)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20+2*uint64(len(b)) {
			t.Errorf("parsing %d bytes allocates %d", len(b), got)
		}
		if err != nil {
			if !aboutObject(err) {
				t.Errorf("error %v", err)
			}
			return
		}
		if again := appendParity(nil, n, p); p.intact() && p.matches(make([]byte, p.size)) && len(again) != len(b) {
			t.Logf("%d bytes, %d when made again", len(b), len(again))
		}
	})
}

// TestParityBytes pins the codes: what one version has put, all later ones must be able to use.
func TestParityBytes(t *testing.T) {
	for _, test := range []struct {
		segments int
		want     string
	}{{100, "955a9b3b57e82bc1"}, {300, "b966e161983e1f61"}} {
		wire := make([]byte, seal.HeaderSize+test.segments*sealedSegment)
		for i := range wire {
			wire[i] = byte(i>>8) ^ byte(i) ^ byte(i>>16)
		}
		b, err := makeParity(Name{1, 2, 3}, wire, 20)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		if got := hex.EncodeToString(sum[:8]); got != test.want {
			t.Errorf("parity of %d segments has the hash %s, want %s", test.segments, got, test.want)
		}
	}
}

// TestParityLater sets parity in a repository that was made without: what is old and what others put later get it.
func TestParityLater(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	other, err := Open(t.Context(), s.st, password, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.r.Repair(t.Context(), &RepairOptions{Check: CheckOptions{ReadData: true}, Parity: 50}); err != nil || r.Parity == 0 {
		t.Fatalf("Repair = %+v, %v", r, err)
	}
	parities := func() int {
		n := 0
		for _, name := range s.st.Names() {
			if _, ok := parseParityName(name); ok {
				n++
			}
		}
		return n
	}
	before := parities()
	put := func(r *Repository) {
		t.Helper()
		n := newName()
		if err := r.PutMultichunk(t.Context(), n, randomBytes(rng, seal.MinWire)); err != nil {
			t.Fatal(err)
		}
	}
	put(s.r)
	if n := parities(); n != before+1 {
		t.Errorf("%d parity objects, want %d", n, before+1)
	}
	if put(other); parities() != before+1 {
		t.Error("one who has not read the settings puts parity")
	}
	s.must(t, other.ReadSettings(t.Context()))
	put(other)
	if n := parities(); n != before+2 || other.Parity() != 50 {
		t.Errorf("%d parity objects, share %d, want %d, 50", n, other.Parity(), before+2)
	}
	late, err := Open(t.Context(), s.st, password, nil)
	if err != nil || late.Parity() != 50 {
		t.Errorf("opened later: share %d, %v", late.Parity(), err)
	}
	s.must(t, late.SetParity(t.Context(), 0))
	s.must(t, other.SetParity(t.Context(), 100))
	s.must(t, late.ReadSettings(t.Context()))
	if late.Parity() != 100 || other.Parity() != 100 {
		t.Errorf("shares %d, %d, want the one that was set last", late.Parity(), other.Parity())
	}
}

func FuzzSetting(f *testing.F) {
	f.Add(appendSetting(nil, setting{1, 50}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSetting(b)
		if err == nil && !bytes.HasPrefix(b, appendSetting(nil, s)) {
			t.Errorf("%x becomes %+v", b, s)
		}
	})
}

func FuzzMove(f *testing.F) {
	f.Add(appendMove(nil, &move{to: Name{1}, from: []Name{{2}, {3}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMove(b)
		if err == nil && len(m.from)*len(Name{}) > len(b) {
			t.Errorf("%d names out of %d bytes", len(m.from), len(b))
		}
	})
}
