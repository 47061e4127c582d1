package store

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// openAny opens an object of any kind as those do who read it, and returns an error unless every byte of it is right.
func (s *sample) openAny(name string, wire []byte) error {
	dir, rest, _ := strings.Cut(name, "/")
	id, _ := parseID(rest)
	switch dir {
	case keysDir:
		_, err := seal.ParseSlot(s.r.cfg.Repository, id, wire)
		return err
	case keyringDir:
		_, _, err := s.r.identity.OpenKeyring(id, wire)
		return err
	case repositoryDir:
		_, _, err := s.r.keys.OpenPadded(seal.KindRepository, name, wire)
		return err
	case clientsDir:
		_, err := s.r.openRegistration(name, wire)
		return err
	case commitsDir:
		_, err := s.r.openCommit(name, wire)
		return err
	case noticesDir:
		_, err := s.r.openNotice(name, wire)
		return err
	case hooksDir:
		_, err := s.r.openHookList(name, wire)
		return err
	case movedDir:
		_, err := s.r.openMove(name, wire)
		return err
	case pastDir:
		_, err := s.r.openPast(name, wire)
		return err
	case settingsDir:
		_, err := s.r.openSetting(name, wire)
		return err
	case parityDir:
		n, _ := parseParityName(name)
		p, err := parseParity(n, wire)
		data, _ := s.st.Object(ObjectName(n))
		if err == nil && !(p.intact() && p.matches(data) && bytes.Equal(appendParity(nil, n, p), wire)) {
			err = corruptf("parity")
		}
		return err
	case ballastDir:
		return s.r.openBallast(name, wire)
	case dataDir:
		n, _ := parseObjectName(name)
		return s.r.VerifyMultichunk(n, wire)
	}
	panic("no such kind: " + name)
}

// TestDamageAny flips bits, cuts off, appends and swaps in one object of every kind: each is found, with an error that says so.
func TestDamageAny(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	s.r.keys.reload = nil // what names another epoch is not looked for
	s.must(t, s.r.putNotice(t.Context(), &Notice{ID: NoticeID{1}, Condemned: []Name{newName()}}))
	s.must(t, s.r.putMove(t.Context(), &move{to: newName(), from: []Name{newName()}}), s.r.SetParity(t.Context(), 50))
	s.must(t, s.r.putPast(t.Context(), map[Incarnation]passage{{1}: {seq: 2}}))
	_, err := s.r.putSealed(t.Context(), seal.KindHooks, hookListName(hookListID{1}), appendHookList(nil, &hookList{}))
	s.must(t, err)
	n, _ := parseObjectName(s.owner[s.chunks[0]][0])
	wire, _ := s.st.Object(ObjectName(n))
	s.must(t, s.r.putParity(t.Context(), n, wire, 50))

	kinds := map[string]string{} // the smallest object of each kind
	for _, name := range s.st.Names() {
		dir, _, _ := strings.Cut(name, "/")
		b, _ := s.st.Object(name)
		if was, ok := s.st.Object(kinds[dir]); !ok || len(b) < len(was) {
			kinds[dir] = name
		}
	}
	nodes := s.owner[s.last.Root.ID][0]
	kinds["nodes"] = nodes
	if len(kinds) != 14 {
		t.Fatalf("%d kinds: %v", len(kinds), kinds)
	}
	flips := 600 // of each kind
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
