package store

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

func TestRegister(t *testing.T) {
	r, st, _ := initMem(t)
	c := NewClientID()
	g, key, err := r.Register(t.Context(), c, "host\n"+strings.Repeat("é", 5000))
	if err != nil {
		t.Fatal(err)
	}
	if g.Client != c || g.InodeRange == 0 || g.InodeRange > maxInodeRange || !key.Public().(ed25519.PublicKey).Equal(g.PublicKey) {
		t.Errorf("registration %+v", g)
	}
	again, _, err := r.Register(t.Context(), c, "host")
	if err != nil {
		t.Fatal(err)
	}
	if again.Incarnation == g.Incarnation || again.InodeRange == g.InodeRange {
		t.Error("two incarnations share a name or an inode range")
	}
	for _, r := range []*Repository{r, openOn(t, st)} {
		got, err := r.Registrations(t.Context())
		if err != nil || len(got) != 2 {
			t.Fatalf("%d registrations, %v", len(got), err)
		}
		for _, got := range got {
			if got.Incarnation == g.Incarnation && (!got.PublicKey.Equal(g.PublicKey) || got.InodeRange != g.InodeRange || !got.Time.Equal(g.Time) || got.Host != g.Host) {
				t.Errorf("read %+v, want %+v", got, *g)
			}
		}
	}
	for _, name := range st.InDir(clientsDir) {
		if wire, _ := st.Object(name); len(wire) != 4096 && len(wire) != 8192 {
			t.Errorf("registration has %d bytes", len(wire))
		}
	}
}

// TestRegisterSameRange lets two clients draw one range at the same time.
func TestRegisterSameRange(t *testing.T) {
	mem := remotetest.NewMem()
	initOn(t, mem)
	f := remotetest.NewFault(mem, nil)
	a, b := openOn(t, mem), openOn(t, f)
	draws := func(ns ...uint32) func() uint32 {
		return func() uint32 {
			n := ns[0]
			if len(ns) > 1 {
				ns = ns[1:]
			}
			return n
		}
	}
	a.random, b.random = draws(77, 78), draws(0, 77, 78, 79, 80)
	var first *Registration
	f.SetHook(func(op, name string) (err error) {
		if op == "put" && first == nil {
			first, _, err = a.Register(t.Context(), NewClientID(), "a")
		}
		return err
	})
	second, _, err := b.Register(t.Context(), NewClientID(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if first == nil || first.InodeRange != 77 {
		t.Fatalf("the other client has registered %+v", first)
	}
	if second.InodeRange != 78 {
		t.Errorf("the second client has range %d, want 78, the next that it drew", second.InodeRange)
	}
	if got, err := a.Registrations(t.Context()); err != nil || len(got) != 2 {
		t.Errorf("%d registrations, %v, want 2: the one that gave way is gone", len(got), err)
	}
}

// TestRegistrationDamage damages a registration in all ways. The others are still read, and registering goes on.
func TestRegistrationDamage(t *testing.T) {
	r, st, _ := initMem(t)
	good, _, err := r.Register(t.Context(), NewClientID(), "good")
	if err != nil {
		t.Fatal(err)
	}
	bad, _, err := r.Register(t.Context(), NewClientID(), "bad")
	if err != nil {
		t.Fatal(err)
	}
	name := st.InDir(clientsDir + "/" + bad.Client.String())[0]
	wire, _ := st.Object(name)
	rng := newRand(t)
	for i := range 300 {
		broken := bytes.Clone(wire)
		if i%2 == 0 {
			broken[rng.IntN(len(broken))] ^= 1 << rng.IntN(8)
		} else {
			broken = broken[:rng.IntN(len(broken))]
		}
		if _, err := r.openRegistration(name, broken); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("registration opens: %v", err)
		}
	}
	st.SetObject(name, wire[:100])
	fresh := openOn(t, st)
	got, err := fresh.Registrations(t.Context())
	var about *ObjectError
	if !errors.As(err, &about) || about.Object != name || !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v, want one about %s", err, name)
	}
	if len(got) != 1 || got[0].Incarnation != good.Incarnation {
		t.Errorf("good registrations: %+v", got)
	}
	if _, _, err := fresh.Register(t.Context(), NewClientID(), "new"); err != nil {
		t.Errorf("Register beside a damaged one: %v", err)
	}
}

// TestRegistrationSwapped puts registrations under other names and into another repository.
func TestRegistrationSwapped(t *testing.T) {
	r, st, _ := initMem(t)
	other, _, _ := initMem(t)
	g, key, err := r.Register(t.Context(), NewClientID(), "a")
	if err != nil {
		t.Fatal(err)
	}
	name := st.InDir(clientsDir)[0]
	wire, _ := st.Object(name)
	moved := strings.Replace(name, g.Client.String(), NewClientID().String(), 1)
	if _, err := r.openRegistration(moved, wire); !errors.Is(err, ErrCorrupt) {
		t.Errorf("under another client: %v", err)
	}
	if _, err := other.openRegistration(name, wire); !errors.Is(err, ErrCorrupt) {
		t.Errorf("in another repository: %v", err)
	}
	if _, err := r.openCommit(name, wire); !errors.Is(err, ErrCorrupt) {
		t.Errorf("as a commit: %v", err)
	}
	// Somebody with the keys of the repository seals a registration for an incarnation that is not his.
	body := appendRegistration(nil, g)
	_, stranger, _ := ed25519.GenerateKey(nil)
	for what, signature := range map[string][]byte{
		"signed by another key":        ed25519.Sign(stranger, r.registrationMessage(name, body)),
		"signed for another name":      ed25519.Sign(key, r.registrationMessage(moved, body)),
		"signed in another repository": ed25519.Sign(key, other.registrationMessage(name, body)),
	} {
		wire, err := r.keys.SealPadded(seal.KindRegistration, name, append(bytes.Clone(signature), body...), seal.Features{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.openRegistration(name, wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", what, err)
		}
	}
}

func TestRegisterUnreachable(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	if _, _, err := r.Register(t.Context(), NewClientID(), "a"); err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"list", "put"} {
		failAt(f, remotetest.Unreachable, op, 0)
		if _, _, err := r.Register(t.Context(), NewClientID(), "b"); !errors.Is(err, remote.ErrUnreachable) {
			t.Errorf("%s unreachable: %v", op, err)
		}
		f.Heal()
	}
}

func FuzzRegistration(f *testing.F) {
	public, _, _ := ed25519.GenerateKey(nil)
	f.Add(appendRegistration(nil, &Registration{PublicKey: public, InodeRange: 5, Host: "host", Time: time.Unix(1, 0)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := parseRegistration(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		if got := appendRegistration(nil, g); !bytes.HasPrefix(b, got) {
			t.Errorf("%x is read as %+v, which is %x", b, g, got)
		}
	})
}
