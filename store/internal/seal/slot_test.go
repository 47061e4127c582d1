package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

var (
	cheap      = KDF{Memory: 8, Passes: 1, Threads: 1}
	repository = [16]byte{0xaa, 1}
)

func newSlot(t testing.TB) (*Identity, []byte) {
	t.Helper()
	id, wire, err := NewIdentity(repository, []byte("password"), cheap)
	if err != nil {
		t.Fatal(err)
	}
	return id, wire
}

func TestSlot(t *testing.T) {
	id, wire := newSlot(t)
	if len(wire) != SlotSize {
		t.Errorf("slot has %d bytes, want %d", len(wire), SlotSize)
	}
	got, err := OpenSlot(repository, id.slot.ID, wire, []byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	if got.auth != id.auth || !got.private.Equal(id.private) || got.slot != id.slot {
		t.Error("opened slot differs")
	}
	for _, wrong := range []string{"", "Password", "password\n", "password ", strings.Repeat("p", 1<<16)} {
		if _, err := OpenSlot(repository, id.slot.ID, wire, []byte(wrong)); !errors.Is(err, ErrPassword) {
			t.Errorf("password %.20q: %v, want ErrPassword", wrong, err)
		}
	}
	if _, err := OpenSlot([16]byte{1}, id.slot.ID, wire, []byte("password")); !errors.Is(err, ErrForeign) {
		t.Errorf("other repository: %v, want ErrForeign", err)
	}
	if _, err := OpenSlot(repository, ID{1}, wire, []byte("password")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("other name: %v, want ErrCorrupt", err)
	}
}

// TestSlotDamage flips every bit of a slot and cuts it everywhere. A wrong password must never be the verdict.
func TestSlotDamage(t *testing.T) {
	id, wire := newSlot(t)
	for i := range len(wire) * 8 {
		bad := bytes.Clone(wire)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := OpenSlot(repository, id.slot.ID, bad, []byte("password")); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d: %v, want ErrCorrupt", i, err)
		}
	}
	for n := range len(wire) {
		if _, err := OpenSlot(repository, id.slot.ID, wire[:n], []byte("password")); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v, want ErrCorrupt", n, err)
		}
	}
}

// TestSlotForged flips every bit and mends the hash at the end, as somebody would who wants to do harm.
func TestSlotForged(t *testing.T) {
	id, wire := newSlot(t)
	for i := range slotEnd * 8 {
		bad := bytes.Clone(wire)
		bad[i/8] ^= 1 << (i % 8)
		mend(bad)
		got, err := OpenSlot(repository, id.slot.ID, bad, []byte("password"))
		if err == nil || got != nil {
			t.Fatalf("bit %d: the slot opens", i)
		}
	}
}

const slotEnd = SlotSize - sha256.Size

func mend(wire []byte) {
	end := len(wire) - sha256.Size
	sum := sha256.Sum256(wire[:end])
	copy(wire[end:], sum[:])
}

// TestSlotHostileParameters shows that a slot cannot make its reader spend memory or time.
func TestSlotHostileParameters(t *testing.T) {
	id, wire := newSlot(t)
	for _, kdf := range []KDF{
		{Memory: 1<<20 + 1, Passes: 1, Threads: 1},
		{Memory: 8, Passes: 65, Threads: 1},
		{Memory: 1 << 20, Passes: 9, Threads: 1},
		{Memory: 7, Passes: 1, Threads: 1},
		{Memory: 8, Passes: 0, Threads: 1},
		{Memory: 8, Passes: 1, Threads: 0},
		{Memory: 1 << 20, Passes: 1, Threads: 65},
		{Memory: 8, Passes: 1, Threads: 2},
	} {
		bad := bytes.Clone(wire)
		bad[slotThreads] = kdf.Threads
		binary.BigEndian.PutUint32(bad[slotMemory:], kdf.Memory)
		binary.BigEndian.PutUint32(bad[slotPasses:], kdf.Passes)
		mend(bad)
		start := time.Now()
		if _, err := OpenSlot(repository, id.slot.ID, bad, []byte("password")); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v, want ErrCorrupt", kdf, err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("%+v: took %v", kdf, d)
		}
		if _, _, err := NewIdentity(repository, []byte("password"), kdf); err == nil {
			t.Errorf("%+v: a slot was made that nobody opens", kdf)
		}
	}
	if err := DefaultKDF().Check(); err != nil {
		t.Error(err)
	}
}

func TestSlotNewer(t *testing.T) {
	id, wire := newSlot(t)
	for name, at := range map[string]int{"format": 7, "suite": 8, "reserved": 9, "refuse": 20, "method": slotMethod} {
		bad := bytes.Clone(wire)
		bad[at] = 77
		mend(bad)
		if _, err := OpenSlot(repository, id.slot.ID, bad, []byte("password")); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

func TestRecovery(t *testing.T) {
	id, _ := newSlot(t)
	spare, wire, printed, err := id.AddRecovery()
	if err != nil {
		t.Fatal(err)
	}
	if len(printed) != 44 || strings.Count(printed, "-") != 8 {
		t.Errorf("recovery key %q: want nine groups of four", printed)
	}
	for _, typed := range []string{
		printed,
		strings.ToLower(printed),
		strings.ReplaceAll(printed, "-", ""),
		strings.ReplaceAll(printed, "-", " "),
		strings.NewReplacer("0", "O", "1", "l").Replace(printed),
	} {
		got, err := OpenSlot(repository, spare.slot.ID, wire, []byte(typed))
		if err != nil || got.auth != id.auth {
			t.Errorf("OpenSlot with %q: %v", typed, err)
		}
	}
	for i := range printed {
		if printed[i] == '-' {
			continue
		}
		bad := []byte(printed)
		bad[i] = "23"[min(1, strings.Count("2", string(bad[i])))]
		if err := CheckRecovery(bad); err == nil || !errors.Is(err, ErrPassword) {
			t.Errorf("CheckRecovery(%q) = %v, want a typing mistake", bad, err)
		}
		if _, err := OpenSlot(repository, spare.slot.ID, wire, bad); !errors.Is(err, ErrPassword) {
			t.Errorf("OpenSlot with %q = %v, want ErrPassword", bad, err)
		}
	}
	for _, ordinary := range []string{"", "password", printed[:40], printed + "0", strings.Repeat("u", 36)} {
		if err := CheckRecovery([]byte(ordinary)); err != nil {
			t.Errorf("CheckRecovery(%q) = %v, want nil", ordinary, err)
		}
	}
}

// TestRecoveryDigits pins the example of FORMAT.md.
func TestRecoveryDigits(t *testing.T) {
	const want = "0000-0000-0000-0000-0000-0000-0000-0000-BA14"
	if got := formatRecovery([recoverySize]byte{}); got != want {
		t.Errorf("recovery key of zeros = %s, want %s", got, want)
	}
}

// newKeyringObject returns a keyring, its object, and two identities that it is sealed to.
func newKeyringObject(t testing.TB) (k *Keyring, name ID, wire []byte, a, b *Identity) {
	t.Helper()
	a, _ = newSlot(t)
	b, _, _, err := a.AddRecovery()
	if err != nil {
		t.Fatal(err)
	}
	k = NewKeyring(repository)
	name, wire, err = a.SealKeyring(k, Roster{[]Listed{a.List("one", time.Unix(1, 0)), b.List("two", time.Unix(2, 0))}, []ID{{7}}})
	if err != nil {
		t.Fatal(err)
	}
	return k, name, wire, a, b
}

func TestKeyringObject(t *testing.T) {
	k, name, wire, a, b := newKeyringObject(t)
	for _, id := range []*Identity{a, b} {
		got, roster, err := id.OpenKeyring(name, wire)
		if err != nil {
			t.Fatal(err)
		}
		if !got.SameRoot(k) || got.current != k.current || got.epochs[k.current] != k.epochs[k.current] {
			t.Error("opened keyring differs")
		}
		want := Roster{[]Listed{a.List("one", time.Unix(1, 0)), b.List("two", time.Unix(2, 0))}, []ID{{7}}}
		if !reflect.DeepEqual(roster, want) {
			t.Errorf("roster %+v, want %+v", roster, want)
		}
	}
	c, _, err := a.AddPassword([]byte("third"), cheap)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.OpenKeyring(name, wire); !errors.Is(err, ErrNotListed) {
		t.Errorf("slot that is not listed: %v, want ErrNotListed", err)
	}
	if _, _, err := a.OpenKeyring(ID{1}, wire); !errors.Is(err, ErrCorrupt) {
		t.Errorf("other name: %v, want ErrCorrupt", err)
	}
}

func TestKeyringDamage(t *testing.T) {
	_, name, wire, a, _ := newKeyringObject(t)
	for i := range len(wire) * 8 {
		bad := bytes.Clone(wire)
		bad[i/8] ^= 1 << (i % 8)
		if _, _, err := a.OpenKeyring(name, bad); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d: %v, want ErrCorrupt", i, err)
		}
	}
	for n := range len(wire) {
		if _, _, err := a.OpenKeyring(name, wire[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v, want ErrCorrupt", n, err)
		}
	}
}

// TestKeyringForged makes a keyring for the public keys of a repository without having opened a slot of it.
func TestKeyringForged(t *testing.T) {
	k, _, wire, a, _ := newKeyringObject(t)
	stranger := &Identity{repository: repository, auth: randomKey()}
	name, forged, err := stranger.SealKeyring(k, Roster{Slots: []Listed{a.List("one", time.Unix(1, 0))}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.OpenKeyring(name, forged); !errors.Is(err, ErrCorrupt) {
		t.Errorf("forged keyring: %v, want ErrCorrupt", err)
	}
	for i := range (len(wire) - 2*sha256.Size) * 8 {
		bad := bytes.Clone(wire)
		bad[i/8] ^= 1 << (i % 8)
		mend(bad)
		if _, _, err := a.OpenKeyring(ID(bad[keyringID:]), bad); err == nil {
			t.Fatalf("bit %d: the keyring opens", i)
		}
	}
}

func TestSlotNames(t *testing.T) {
	for _, name := range []string{"", "a\nb", "\xff", strings.Repeat("x", 65), "\x7f"} {
		if CheckSlotName(name) == nil {
			t.Errorf("CheckSlotName(%q) = nil", name)
		}
	}
	if err := CheckSlotName("Läptop 2"); err != nil {
		t.Error(err)
	}
}
