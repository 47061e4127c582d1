package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// openAny opens an object of any kind as those do who read it, and returns an error unless every byte of it is right.
func (s *sample) openAny(name string, wire []byte) error {
	dir, _, _ := strings.Cut(name, "/")
	switch dir {
	case parityDir:
		n, _ := parseParityName(name)
		p, err := parseParity(n, wire)
		data, _ := s.st.Object(ObjectName(n))
		if err == nil && !(p.intact() && p.matches(data) && bytes.Equal(appendParity(nil, n, p), wire)) {
			err = corruptf("parity")
		}
		return err
	case dataDir:
		n, _ := parseObjectName(name)
		return s.r.VerifyMultichunk(n, wire)
	}
	return s.r.openSmall(name, wire)
}

// everyKind adds what a sample has not of all kinds of objects, two of each but for the repository object.
func (s *sample) everyKind(t testing.TB) {
	t.Helper()
	s.r.keys.reload = nil // what names another epoch is not looked for
	for i := range byte(2) {
		s.must(t, s.r.putNotice(t.Context(), &Notice{Condemned: []Name{newName()}}))
		s.must(t, s.r.putMove(t.Context(), &move{to: newName(), from: []Name{newName()}}), s.r.SetParity(t.Context(), 50+int(i)))
		s.must(t, s.r.putPast(t.Context(), map[Incarnation]passage{{i + 1}: {seq: 2}}))
		s.must(t, s.r.putHookList(t.Context(), new(hookList)))
		n, _ := parseObjectName(s.st.InDir(dataDir)[i])
		wire, _ := s.st.Object(ObjectName(n))
		s.must(t, s.r.putParity(t.Context(), n, wire, 50))
	}
	_, _, err := s.r.Register(t.Context(), NewClientID(), "another")
	s.must(t, err, s.r.RotateKey(t.Context()))
	second := objectName(ballastDir, seal.ID{7})
	ballast := make([]byte, ballastSize)
	sum := s.r.ballastSum(second, ballast)
	copy(ballast[ballastSize-len(sum):], sum[:])
	s.st.SetObject(second, ballast)
}

// smallest returns the smallest object of each kind.
func (s *sample) smallest() map[string]string {
	kinds := map[string]string{}
	for _, name := range s.st.Names() {
		dir, _, _ := strings.Cut(name, "/")
		b, _ := s.st.Object(name)
		if was, ok := s.st.Object(kinds[dir]); !ok || len(b) < len(was) {
			kinds[dir] = name
		}
	}
	kinds["nodes"] = s.owner[s.last.Root.ID][0]
	if len(kinds) != 14 {
		panic(fmt.Sprintf("%d kinds: %v", len(kinds), kinds))
	}
	return kinds
}

// TestDamageAny flips bits, cuts off, appends and swaps in one object of every kind: each is found, with an error that says so.
func TestDamageAny(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	s.everyKind(t)
	kinds := s.smallest() // the smallest object of each kind
	flips := 600          // of each kind
	for kind, name := range kinds {
		whole, _ := s.st.Object(name)
		if err := s.openAny(name, whole); err != nil {
			t.Fatalf("%s is intact: %v", name, err)
		}
		bad := func(what string, wire []byte) {
			t.Helper()
			if err := s.openAny(name, wire); err == nil || !aboutObject(err) {
				t.Fatalf("%s, %s: %v, want ErrCorrupt", kind, what, err)
			}
		}
		bits := 8 * len(whole)
		for i := range bits {
			if !long {
				if i == flips {
					break
				}
				i = rng.IntN(bits)
			}
			damaged := bytes.Clone(whole)
			damaged[i/8] ^= 1 << (i % 8)
			bad(fmt.Sprintf("bit %d", i), damaged)
		}
		for range 50 {
			bad("cut short", whole[:rng.IntN(len(whole))])
		}
		bad("longer", append(slices.Clone(whole), 0))
		bad("empty", nil)
		for other, otherName := range kinds {
			if b, _ := s.st.Object(otherName); other != kind && otherName != name {
				bad("replaced by "+other, b)
			}
		}
	}
}

// TestCheckDamage cuts one object of each kind at many lengths, puts another of its kind in its place, and deletes it: check names
// it, and repair puts it right from copies of what a machine has read.
func TestCheckDamage(t *testing.T) {
	s := newSample(t, newRand(t))
	s.everyKind(t)
	kinds := s.smallest()
	intact := s.st.Snapshot()
	spare := &testSpare{objects: map[Name][]byte{}, small: map[string][]byte{}}
	for _, name := range s.st.Names() {
		wire, _ := s.st.Object(name)
		if n, ok := parseObjectName(name); ok {
			spare.objects[n] = wire
		} else if !strings.HasPrefix(name, parityDir) {
			spare.small[name] = wire
		}
	}
	if r := s.check(t, readData); len(r.Damages) > 0 {
		t.Fatalf("before anything was done: %+v", r.Damages)
	}
	for kind, name := range kinds {
		whole, _ := s.st.Object(name)
		data := slices.Contains([]string{dataDir, "nodes", parityDir}, kind)
		try := func(what string, damaged []byte, may bool) {
			t.Helper()
			s.st.Restore(intact)
			if damaged == nil {
				s.delete(t, name)
			} else {
				s.st.SetObject(name, damaged)
			}
			o := &CheckOptions{ReadData: data, Spare: spare}
			r, err := s.r.Check(t.Context(), o)
			s.must(t, err)
			i := slices.IndexFunc(slices.Concat(r.Damages, r.Healed), func(d Damage) bool { return d.Object == name })
			if i < 0 && !slices.Contains(r.HalfWritten, name) && !may {
				t.Errorf("%s, %s: not found", kind, what)
			}
			if slices.ContainsFunc(r.Damages, func(d Damage) bool { return !d.Repairable }) {
				t.Errorf("%s, %s: not repairable: %+v", kind, what, r.Damages)
			}
			if _, err := s.r.Repair(t.Context(), &RepairOptions{Check: *o}); err != nil {
				t.Errorf("%s, %s: %v", kind, what, err)
			}
			if r := s.check(t, o); len(r.Damages)+len(r.Healed) > 0 {
				t.Errorf("%s, %s: after repair %+v", kind, what, r)
			}
		}
		lengths := []int{0, seal.HeaderSize, len(whole) / 2, len(whole) - 1}
		if long {
			for n := 0; n < len(whole); n += 1 + len(whole)/200 {
				lengths = append(lengths, n)
			}
		}
		for _, n := range lengths {
			if n < len(whole) {
				try(fmt.Sprintf("cut at %d", n), append([]byte{}, whole[:n]...), false)
			}
		}
		// What nobody would miss may be gone without a word.
		try("gone", nil, slices.Contains([]string{noticesDir, hooksDir, movedDir, parityDir, ballastDir, pastDir, dataDir, keyringDir, clientsDir}, kind))
		for _, other := range s.st.Names() {
			if other != name && strings.HasPrefix(other, name[:strings.IndexByte(name, '/')+1]) {
				b, _ := s.st.Object(other)
				try("swapped for "+other, b, false)
				break
			}
		}
	}
	s.st.Restore(intact)
}

// TestReplays puts back, one at a time, what was deleted in good order: nothing takes that for damage or a roll-back, and no
// password that was removed opens the repository.
func TestReplays(t *testing.T) {
	s := newSample(t, newRand(t))
	ctx := t.Context()
	old, err := s.r.AddSlot(ctx, "old", []byte("old password"), cheapKDF)
	s.must(t, err)
	trust := new(Trust)
	_, err = s.r.Poll(ctx, trust)
	s.must(t, err)
	before := s.objects()
	s.must(t, s.r.RemoveSlot(ctx, old.Name), s.r.RotateKey(ctx))
	s.must(t, s.r.putPast(ctx, map[Incarnation]passage{s.reg.Incarnation: {seq: 3}}))
	commits := s.st.InDir(commitsDir)
	slices.Sort(commits)
	s.delete(t, commits[0])
	s.delete(t, commits[1])
	now := s.st.Snapshot()
	replayed := 0
	for name, wire := range before {
		if _, there := s.st.Object(name); there {
			continue
		}
		replayed++
		s.st.SetObject(name, []byte(wire))
		if r := s.check(t, readData); len(r.Damages) > 0 {
			t.Errorf("%s put back: %+v", name, r.Damages)
		}
		if _, err := s.r.Poll(ctx, trust); err != nil {
			t.Errorf("%s put back: poll: %v", name, err)
		}
		if _, err := Open(ctx, s.st, []byte("old password"), &OpenOptions{Patience: 1}); !errors.Is(err, ErrPassword) {
			t.Errorf("%s put back: the old password: %v", name, err)
		}
		fresh, err := Open(ctx, s.st, password, nil)
		s.must(t, err)
		slots, err := fresh.Slots(ctx)
		s.must(t, err)
		if slices.ContainsFunc(slots, func(l Slot) bool { return l.ID == old.ID }) {
			t.Errorf("%s put back: the slot is listed", name)
		}
		s.st.Restore(now)
	}
	if replayed < 4 {
		t.Errorf("%d objects put back, so this shows little", replayed)
	}
}
