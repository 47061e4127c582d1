package seal

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/vectors.txt anew, which a new format version alone may do")

const vectorsFile = "testdata/vectors.txt"

// A vector is a paragraph of the file: what to open, and the verdict.
type vector map[string]string

func (v vector) bytes(t *testing.T, field string) []byte {
	t.Helper()
	b, err := hex.DecodeString(v[field])
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return b
}

func (v vector) number(t *testing.T, field string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(v[field], 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return n
}

func readVectors(t *testing.T) []vector {
	t.Helper()
	f, err := os.Open(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []vector
	current := vector{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		field, value, ok := strings.Cut(lines.Text(), ": ")
		switch {
		case strings.HasPrefix(lines.Text(), "#"):
		case ok:
			current[field] = value
		case len(current) > 0:
			all, current = append(all, current), vector{}
		}
	}
	if len(current) > 0 {
		all = append(all, current)
	}
	return all
}

var verdicts = map[string]error{"ok": nil, "corrupt": ErrCorrupt, "epoch": ErrEpoch, "format": ErrFormat, "password": ErrPassword, "foreign": ErrForeign, "not listed": ErrNotListed}

// TestVectors opens what was sealed when format 1 was made.
func TestVectors(t *testing.T) {
	if *update {
		writeVectors(t)
	}
	vectors := readVectors(t)
	if len(vectors) < 15 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	for _, v := range vectors {
		t.Run(v["name"], func(t *testing.T) {
			want, known := verdicts[v["verdict"]]
			if !known {
				t.Fatalf("verdict %q", v["verdict"])
			}
			got, err := v.open(t)
			if want == nil && err != nil || !errors.Is(err, want) {
				t.Fatalf("%v, want %s", err, v["verdict"])
			}
			if want == nil && !bytes.Equal(got, v.bytes(t, "plain")) {
				t.Errorf("opened %x", got)
			}
		})
	}
}

// open goes through every entry point for what v is, and returns the secret that comes out.
func (v vector) open(t *testing.T) ([]byte, error) {
	wire := v.bytes(t, "wire")
	switch v["entry"] {
	case "object":
		return v.openObject(t, wire)
	case "slot":
		id, err := OpenSlot([16]byte(v.bytes(t, "repository")), ID(v.bytes(t, "id")), wire, []byte(v["password"]))
		if err != nil {
			return nil, err
		}
		return id.auth[:], nil
	case "keyring":
		id, err := OpenSlot([16]byte(v.bytes(t, "repository")), ID(v.bytes(t, "slot")), v.bytes(t, "slot wire"), []byte(v["password"]))
		if err != nil {
			t.Fatal(err)
		}
		k, _, err := id.OpenKeyring(ID(v.bytes(t, "id")), wire)
		if err != nil {
			return nil, err
		}
		chunks := k.Derive("chunk ids")
		return append(k.root[:], chunks[:]...), nil
	}
	t.Fatalf("entry %q", v["entry"])
	return nil, nil
}

func (v vector) openObject(t *testing.T, wire []byte) ([]byte, error) {
	k := newKeyring([16]byte(v.bytes(t, "repository")), Key{}, map[Epoch]Key{Epoch(v.number(t, "epoch")): Key(v.bytes(t, "epoch key"))})
	kind, name := Kind(v.number(t, "kind")), v["object"]
	got, err := k.Open(nil, kind, name, wire)
	if n := len(got); n > 0 {
		ranged, rangeErr := k.OpenRange(bytes.NewReader(wire), -1, kind, name, n/2, n-n/2)
		if rangeErr != nil || !bytes.Equal(ranged, got[n/2:]) {
			t.Errorf("OpenRange = %x, %v", ranged, rangeErr)
		}
	}
	if err == nil {
		h, _ := ParseHeader(wire)
		if again, err := k.seal(nil, &h, kind, name, got); err != nil || !bytes.Equal(again, wire) {
			t.Errorf("sealed again it is %x, %v", again, err)
		}
	}
	return got, err
}

// writeVectors makes the file.
func writeVectors(t *testing.T) {
	var out strings.Builder
	out.WriteString("# Objects of format 1, and what comes out of them. Never changed; a new format adds to it.\n")
	add := func(pairs ...any) {
		out.WriteString("\n")
		for i := 0; i < len(pairs); i += 2 {
			value := pairs[i+1]
			if b, ok := value.([]byte); ok {
				value = hex.EncodeToString(b)
			}
			fmt.Fprintf(&out, "%s: %v\n", pairs[i], value)
		}
	}
	writeObjects(t, add)
	writeKeys(t, add)
	if err := os.WriteFile(vectorsFile, []byte(out.String()), 0o666); err != nil {
		t.Fatal(err)
	}
}

func writeObjects(t *testing.T, add func(...any)) {
	k := NewKeyring(repository)
	key := k.epochs[k.current]
	object := func(name, verdict string, h Header, plain []byte, change func([]byte) []byte) {
		h.Epoch, h.salt = k.current, randomKey()
		wire, err := k.seal(nil, &h, KindCommit, "commits/x", plain)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			wire = change(wire)
		}
		add("name", name, "entry", "object", "verdict", verdict, "repository", repository[:], "epoch", fmt.Sprintf("%#x", uint64(k.current)),
			"epoch key", key[:], "kind", 3, "object", "commits/x", "plain", plain, "wire", wire)
	}
	aes, chacha := Header{Format: 1, Suite: SuiteAES}, Header{Format: 1, Suite: SuiteChaCha}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[(at+len(b))%len(b)] ^= 1; return b }
	}
	object("AES", "ok", aes, []byte("plaintext"), nil)
	object("AES, empty", "ok", aes, nil, nil)
	object("ChaCha", "ok", chacha, []byte("plaintext"), nil)
	object("features to ignore", "ok", Header{Format: 1, Suite: SuiteAES, Features: Features{Ignore: 8, ReadOnly: 1}}, []byte("plaintext"), nil)
	object("newer format", "format", Header{Format: 2, Suite: SuiteAES}, []byte("plaintext"), nil)
	object("unknown suite", "format", Header{Format: 1, Suite: 9}, []byte("plaintext"), nil)
	object("feature to refuse", "format", Header{Format: 1, Suite: SuiteAES, Features: Features{Refuse: 1}}, []byte("plaintext"), nil)
	object("magic", "corrupt", aes, []byte("plaintext"), flip(0))
	object("format", "corrupt", aes, []byte("plaintext"), flip(7))
	object("features", "corrupt", aes, []byte("plaintext"), flip(19))
	object("epoch", "epoch", aes, []byte("plaintext"), flip(31))
	object("salt", "corrupt", aes, []byte("plaintext"), flip(40))
	object("commitment", "corrupt", aes, []byte("plaintext"), flip(70))
	object("ciphertext", "corrupt", chacha, []byte("plaintext"), flip(HeaderSize))
	object("tag", "corrupt", chacha, []byte("plaintext"), flip(-1))
	object("cut", "corrupt", chacha, []byte("plaintext"), func(b []byte) []byte { return b[:len(b)-1] })
	object("longer", "corrupt", chacha, []byte("plaintext"), func(b []byte) []byte { return append(b, 0) })
}

func writeKeys(t *testing.T, add func(...any)) {
	id, slot := newSlot(t)
	spare, spareWire, printed, err := id.AddRecovery()
	if err != nil {
		t.Fatal(err)
	}
	later, laterWire, err := id.AddPassword([]byte("later"), KDF{Memory: 16, Passes: 2, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	k := NewKeyring(repository)
	name, keyring, err := id.SealKeyring(k, Roster{Slots: []Listed{id.List("password", time.Unix(1, 0)), spare.List("recovery", time.Unix(1, 0))}})
	if err != nil {
		t.Fatal(err)
	}
	addSlot := func(name, verdict, password string, id *Identity, wire []byte) {
		add("name", name, "entry", "slot", "verdict", verdict, "repository", repository[:], "id", id.slot.ID[:], "password", password, "plain", id.auth[:], "wire", wire)
	}
	addSlot("password slot", "ok", "password", id, slot)
	addSlot("password slot, two threads", "ok", "later", later, laterWire)
	addSlot("recovery slot", "ok", strings.ToLower(printed), spare, spareWire)
	addSlot("wrong password", "password", "passwort", id, slot)
	addSlot("wrong recovery key", "password", formatRecovery(newRecovery()), spare, spareWire)
	addSlot("damaged slot", "corrupt", "password", id, append(bytes.Clone(slot[:slotWrapped]), make([]byte, SlotSize-slotWrapped)...))
	chunks := k.Derive("chunk ids")
	addKeyring := func(title, verdict, password string, id *Identity, slot, wire []byte) {
		add("name", title, "entry", "keyring", "verdict", verdict, "repository", repository[:], "slot", id.slot.ID[:], "slot wire", slot, "password", password,
			"id", name[:], "plain", append(k.root[:], chunks[:]...), "wire", wire)
	}
	addKeyring("keyring", "ok", "password", id, slot, keyring)
	addKeyring("keyring, recovery key", "ok", printed, spare, spareWire, keyring)
	addKeyring("keyring for others", "not listed", "later", later, laterWire, keyring)
	addKeyring("damaged keyring", "corrupt", "password", id, slot, append(bytes.Clone(keyring), 0))
}
