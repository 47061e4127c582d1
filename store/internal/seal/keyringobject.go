package seal

import (
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// A Listed is a slot as an authenticated keyring lists it.
type Listed struct {
	ID      ID
	Method  Method
	Name    string // at most MaxSlotName bytes of UTF-8
	Created time.Time
	public  [32]byte
}

// A Roster says which slots a keyring is for.
type Roster struct {
	Slots   []Listed
	Removed []ID // slots that must never be listed again, the latest last; the first are forgotten when there are many
}

// Limits of a keyring.
const (
	MaxSlots    = 64
	MaxSlotName = 64 // bytes
	MaxKeyring  = keyringStanzas + MaxSlots*stanzaSize + maxBody + 2*sha256.Size

	maxEpochs  = 1 << 10
	maxRemoved = 1 << 10
	maxBody    = 128 << 10
	bodyStep   = 1 << 10 // bodies are padded to a multiple of it, bytes
)

// Offsets in a keyring object.
const (
	keyringRepository = publicSize
	keyringID         = keyringRepository + 16
	keyringEphemeral  = keyringID + 16
	keyringSlots      = keyringEphemeral + 32
	keyringBody       = keyringSlots + 2
	keyringStanzas    = keyringBody + 4

	stanzaSize = 16 + KeySize + overhead
)

// ErrNotListed says that a keyring is not sealed to the slot that was opened.
var ErrNotListed = errors.New("keyring is not sealed to this key slot")

// List returns the line for id in a keyring.
func (id *Identity) List(name string, created time.Time) Listed {
	return Listed{ID: id.slot.ID, Method: id.slot.Method, Name: name, Created: created, public: id.slot.public}
}

// SealKeyring returns a new keyring object that carries k to all slots of a roster, and the name to put it under.
func (id *Identity) SealKeyring(k *Keyring, roster Roster) (ID, []byte, error) {
	slots := roster.Slots
	if k.repository != id.repository {
		panic("seal: keyring of another repository")
	}
	if len(slots) < 1 || len(slots) > MaxSlots {
		return ID{}, nil, fmt.Errorf("keyring: %d key slots: must be 1 to %d", len(slots), MaxSlots)
	}
	ephemeral, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return ID{}, nil, err
	}
	name, fileKey := newID(), randomKey()
	body := appendBody(nil, k, roster)
	defer clear(body)
	b := appendPublic(nil, &Header{Format: Format, Suite: SuiteChaCha})
	b = append(b, k.repository[:]...)
	b = append(b, name[:]...)
	b = append(b, ephemeral.PublicKey().Bytes()...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(slots)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)+overhead))
	for _, s := range slots {
		if b, err = appendStanza(b, k.repository, name, ephemeral, &s, fileKey); err != nil {
			return ID{}, nil, err
		}
	}
	b = singleUse(bodyKey(fileKey, k.repository, name)).Seal(b, zeroNonce, body, b)
	b = append(b, keyringMAC(id.auth, b)...)
	sum := sha256.Sum256(b)
	return name, append(b, sum[:]...), nil
}

func appendStanza(dst []byte, repository [16]byte, name ID, ephemeral *ecdh.PrivateKey, s *Listed, fileKey Key) ([]byte, error) {
	public, err := ecdh.X25519().NewPublicKey(s.public[:])
	if err != nil {
		return dst, err
	}
	shared, err := ephemeral.ECDH(public)
	if err != nil {
		return dst, fmt.Errorf("keyring: key slot %x: %w", s.ID, err)
	}
	key := stanzaKey(shared, repository, name, s.ID, ephemeral.PublicKey(), public)
	dst = append(dst, s.ID[:]...)
	return singleUse(key).Seal(dst, zeroNonce, fileKey[:], nil), nil
}

func stanzaKey(shared []byte, repository [16]byte, name, slot ID, ephemeral, public *ecdh.PublicKey) Key {
	salt := append(ephemeral.Bytes(), public.Bytes()...)
	return expand(shared, salt, "dedupfs 1 keyring slot\x00"+string(repository[:])+string(name[:])+string(slot[:]))
}

func bodyKey(fileKey Key, repository [16]byte, name ID) Key {
	return expand(fileKey[:], repository[:], "dedupfs 1 keyring body\x00"+string(name[:]))
}

func keyringMAC(auth Key, b []byte) []byte {
	mac := hmac.New(sha256.New, auth[:])
	mac.Write(b)
	return mac.Sum(nil)
}

// OpenKeyring opens the keyring object that lies under name. It returns ErrNotListed if the keyring is not sealed to
// id, ErrCorrupt if nobody with a password made it, and ErrFormat.
func (id *Identity) OpenKeyring(name ID, wire []byte) (*Keyring, Roster, error) {
	head, stanzas, sealed, err := id.splitKeyring(name, wire)
	if err != nil {
		return nil, Roster{}, fmt.Errorf("keyring: %w", err)
	}
	fileKey, err := id.openStanza(name, [32]byte(wire[keyringEphemeral:]), stanzas)
	if err != nil {
		return nil, Roster{}, fmt.Errorf("keyring: %w", err)
	}
	body, err := singleUse(bodyKey(fileKey, id.repository, name)).Open(nil, zeroNonce, sealed, head)
	if err != nil {
		return nil, Roster{}, fmt.Errorf("keyring: body: %w", ErrCorrupt)
	}
	defer clear(body)
	k, roster, err := parseBody(id.repository, body)
	if err != nil {
		return nil, Roster{}, fmt.Errorf("keyring: body: %w", err)
	}
	return k, roster, nil
}

// CheckKeyring returns ErrCorrupt if a keyring object is damaged. It takes no key, and so says nothing of who made it.
func CheckKeyring(wire []byte) error { return checkOpen(wire, keyringStanzas+2*sha256.Size) }

// splitKeyring checks a keyring object as a whole and returns its parts: everything before the sealed body, the
// stanzas in it, and the sealed body.
func (id *Identity) splitKeyring(name ID, wire []byte) (head, stanzas, sealed []byte, err error) {
	if len(wire) > MaxKeyring {
		return nil, nil, nil, fmt.Errorf("%d bytes: %w", len(wire), ErrCorrupt)
	}
	if err := CheckKeyring(wire); err != nil {
		return nil, nil, nil, err
	}
	authentic := wire[:len(wire)-2*sha256.Size]
	mac := wire[len(authentic) : len(authentic)+sha256.Size]
	n, b := int(binary.BigEndian.Uint16(wire[keyringSlots:])), int(binary.BigEndian.Uint32(wire[keyringBody:]))
	headSize := keyringStanzas + n*stanzaSize
	switch {
	case ID(wire[keyringID:]) != name:
		return nil, nil, nil, fmt.Errorf("lies under a name that is not its own: %w", ErrCorrupt)
	case [16]byte(wire[keyringRepository:]) != id.repository:
		return nil, nil, nil, ErrForeign
	case !hmac.Equal(mac, keyringMAC(id.auth, authentic)):
		return nil, nil, nil, fmt.Errorf("not made by anybody with a password: %w", ErrCorrupt)
	case n > MaxSlots || b > maxBody || len(authentic) != headSize+b:
		return nil, nil, nil, fmt.Errorf("lengths: %w", ErrCorrupt)
	}
	return authentic[:headSize], authentic[keyringStanzas:headSize], authentic[headSize:], nil
}

func (id *Identity) openStanza(name ID, ephemeral [32]byte, stanzas []byte) (Key, error) {
	for ; len(stanzas) > 0; stanzas = stanzas[stanzaSize:] {
		if ID(stanzas) != id.slot.ID {
			continue
		}
		public, err := ecdh.X25519().NewPublicKey(ephemeral[:])
		if err != nil {
			return Key{}, fmt.Errorf("ephemeral key: %w", ErrCorrupt)
		}
		shared, err := id.private.ECDH(public)
		if err != nil {
			return Key{}, fmt.Errorf("ephemeral key: %w", ErrCorrupt)
		}
		key := stanzaKey(shared, id.repository, name, id.slot.ID, public, id.private.PublicKey())
		fileKey, err := singleUse(key).Open(nil, zeroNonce, stanzas[len(ID{}):stanzaSize], nil)
		if err != nil {
			return Key{}, fmt.Errorf("file key: %w", ErrCorrupt)
		}
		return Key(fileKey), nil
	}
	return Key{}, ErrNotListed
}

// appendBody encodes what a keyring object carries.
func appendBody(dst []byte, k *Keyring, roster Roster) []byte {
	dst = append(dst, k.root[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(k.epochs)))
	for epoch, key := range k.epochs {
		dst = binary.BigEndian.AppendUint64(dst, uint64(epoch))
		dst = append(dst, key[:]...)
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(roster.Slots)))
	for _, s := range roster.Slots {
		dst = append(dst, s.ID[:]...)
		dst = append(dst, s.public[:]...)
		dst = append(dst, byte(s.Method))
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.Created.UnixNano()))
		dst = append(dst, byte(len(s.Name)))
		dst = append(dst, s.Name...)
	}
	removed := roster.Removed[max(0, len(roster.Removed)-maxRemoved):]
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(removed)))
	for _, id := range removed {
		dst = append(dst, id[:]...)
	}
	return append(dst, make([]byte, (bodyStep-len(dst)%bodyStep)%bodyStep)...)
}

// parseBody is the inverse of appendBody. It ignores what follows the removed slots.
func parseBody(repository [16]byte, b []byte) (*Keyring, Roster, error) {
	d := decoder{b: b}
	root := d.key()
	epochs := make(map[Epoch]Key)
	for range d.count(1, maxEpochs) {
		epoch := Epoch(d.uint64())
		epochs[epoch] = d.key()
	}
	var roster Roster
	for range d.count(1, MaxSlots) {
		roster.Slots = append(roster.Slots, d.listed())
	}
	for range d.count(0, maxRemoved) {
		roster.Removed = append(roster.Removed, ID(d.bytes(16)))
	}
	if d.bad {
		return nil, Roster{}, ErrCorrupt
	}
	return newKeyring(repository, root, epochs), roster, nil
}

// A decoder reads from the front of b. After the first thing that is not there, bad is set and everything is zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) bytes(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return make([]byte, n)
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

// count reads a number of at least least and at most most.
func (d *decoder) count(least, most int) int {
	n := int(binary.BigEndian.Uint16(d.bytes(2)))
	if d.bad || n < least || n > most {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) uint64() uint64 { return binary.BigEndian.Uint64(d.bytes(8)) }
func (d *decoder) key() Key       { return Key(d.bytes(KeySize)) }

func (d *decoder) listed() Listed {
	s := Listed{ID: ID(d.bytes(16)), public: [32]byte(d.bytes(32)), Method: Method(d.bytes(1)[0])}
	s.Created = time.Unix(0, int64(d.uint64()))
	s.Name = string(d.bytes(int(d.bytes(1)[0])))
	d.bad = d.bad || CheckSlotName(s.Name) != nil
	return s
}

// CheckSlotName returns an error unless name can be that of a slot.
func CheckSlotName(name string) error {
	if name == "" || len(name) > MaxSlotName || !utf8.ValidString(name) {
		return fmt.Errorf("key slot name %q: must be 1 to %d bytes of UTF-8", name, MaxSlotName)
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("key slot name %q: control character", name)
		}
	}
	return nil
}
