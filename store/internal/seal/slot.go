package seal

import (
	"bytes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// ErrPassword says that a slot does not open with a secret.
var ErrPassword = errors.New("wrong password")

// passwordError is an ErrPassword with more to say.
type passwordError string

func (e passwordError) Error() string        { return string(e) }
func (e passwordError) Is(target error) bool { return target == ErrPassword }

// A Method says what kind of secret opens a slot.
type Method byte

// The methods. Their values never change their meaning.
const (
	MethodPassword Method = 1 // Argon2id
	MethodRecovery Method = 2 // a printed key
)

// An ID names a slot or a keyring object. It is random.
type ID [16]byte

func newID() (id ID) {
	rand.Read(id[:])
	return id
}

// SlotSize is the length in bytes of every slot object.
const SlotSize = slotWrapped + 2*KeySize + overhead + sha256.Size

// Offsets in a slot object.
const (
	slotRepository = publicSize
	slotID         = slotRepository + 16
	slotMethod     = slotID + 16
	slotThreads    = slotMethod + 1
	slotMemory     = slotThreads + 3
	slotPasses     = slotMemory + 4
	slotSalt       = slotPasses + 4
	slotPublic     = slotSalt + 32
	slotCommitment = slotPublic + 32
	slotWrapped    = slotCommitment + 32
)

// A Slot is what a slot object says openly. It is to be trusted only as far as a keyring lists it.
type Slot struct {
	ID     ID
	Method Method
	KDF    KDF // of passwords
	public [32]byte
}

// An Identity is an open slot: it opens keyring objects, and makes new ones and new slots.
type Identity struct {
	slot       Slot
	repository [16]byte
	private    *ecdh.PrivateKey
	auth       Key // authenticates keyring objects; the same in all slots of a repository
}

// Slot returns the slot that was opened.
func (id *Identity) Slot() Slot { return id.slot }

// NewIdentity makes the first slot of a repository, and returns the slot object as well.
func NewIdentity(repository [16]byte, password []byte, kdf KDF) (*Identity, []byte, error) {
	founder := &Identity{repository: repository, auth: randomKey()}
	return founder.AddPassword(password, kdf)
}

// AddPassword makes another slot, which opens with password, and returns its object as well. It is of no use until a
// keyring lists it.
func (id *Identity) AddPassword(password []byte, kdf KDF) (*Identity, []byte, error) {
	if err := kdf.Check(); err != nil {
		return nil, nil, err
	}
	return id.add(MethodPassword, kdf, password)
}

// AddRecovery makes another slot, which opens with a random key, and returns its object and the key as it is printed.
func (id *Identity) AddRecovery() (added *Identity, wire []byte, printed string, err error) {
	secret := newRecovery()
	added, wire, err = id.add(MethodRecovery, KDF{}, secret[:])
	return added, wire, formatRecovery(secret), err
}

func (id *Identity) add(method Method, kdf KDF, secret []byte) (*Identity, []byte, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	added := &Identity{
		slot:       Slot{ID: newID(), Method: method, KDF: kdf, public: [32]byte(private.PublicKey().Bytes())},
		repository: id.repository,
		private:    private,
		auth:       id.auth,
	}
	wire, err := added.appendSlot(nil, secret, randomKey())
	return added, wire, err
}

// appendSlot encodes id as a slot object that opens with secret.
func (id *Identity) appendSlot(dst, secret []byte, salt Key) ([]byte, error) {
	b := appendPublic(nil, &Header{Format: Format, Suite: SuiteChaCha})
	b = append(b, id.repository[:]...)
	b = append(b, id.slot.ID[:]...)
	b = append(b, byte(id.slot.Method), id.slot.KDF.Threads, 0, 0)
	b = binary.BigEndian.AppendUint32(b, id.slot.KDF.Memory)
	b = binary.BigEndian.AppendUint32(b, id.slot.KDF.Passes)
	b = append(b, salt[:]...)
	b = append(b, id.slot.public[:]...)
	kek, commitment, err := id.slot.wrapKeys(b, secret)
	if err != nil {
		return dst, err
	}
	b = append(b, commitment[:]...)
	b = singleUse(kek).Seal(b, zeroNonce, append(id.private.Bytes(), id.auth[:]...), nil)
	sum := sha256.Sum256(b)
	return append(append(dst, b...), sum[:]...), nil
}

// wrapKeys derives what wraps a slot from its secret and its bytes before the commitment.
func (s *Slot) wrapKeys(open, secret []byte) (kek, commitment Key, err error) {
	salt := open[slotSalt : slotSalt+32]
	if s.Method == MethodPassword {
		secret = s.KDF.key(secret, salt)
		defer clear(secret)
	}
	prk, err := hkdf.Extract(sha256.New, secret, salt)
	if err != nil {
		return kek, commitment, fmt.Errorf("derive slot key: %w", err)
	}
	return expandPRK(prk, "dedupfs 1 slot wrap\x00", open), expandPRK(prk, "dedupfs 1 slot commitment\x00", open), nil
}

// ErrForeign says that a slot or keyring belongs to another repository: an init that stopped half-way has left it.
var ErrForeign = errors.New("belongs to another repository")

// ParseSlot reads what a slot object says openly. id is the name that it lies under. It returns ErrCorrupt, ErrFormat
// or ErrForeign.
func ParseSlot(repository [16]byte, id ID, wire []byte) (Slot, error) {
	if err := checkOpen(wire, SlotSize); err != nil {
		return Slot{}, fmt.Errorf("slot: %w", err)
	}
	s := Slot{
		ID:     ID(wire[slotID:]),
		Method: Method(wire[slotMethod]),
		KDF: KDF{
			Memory:  binary.BigEndian.Uint32(wire[slotMemory:]),
			Passes:  binary.BigEndian.Uint32(wire[slotPasses:]),
			Threads: wire[slotThreads],
		},
		public: [32]byte(wire[slotPublic:]),
	}
	switch {
	case s.ID != id:
		return Slot{}, fmt.Errorf("slot: lies under a name that is not its own: %w", ErrCorrupt)
	case [16]byte(wire[slotRepository:]) != repository:
		return Slot{}, ErrForeign
	case s.Method == MethodPassword:
		if err := s.KDF.Check(); err != nil {
			return Slot{}, fmt.Errorf("slot: %w: %w", err, ErrCorrupt)
		}
	case s.Method != MethodRecovery:
		return Slot{}, fmt.Errorf("slot: method %d: %w", s.Method, ErrFormat)
	}
	return s, nil
}

// checkOpen checks what slot and keyring objects have in common: their least size, the hash at the end, and the format.
func checkOpen(wire []byte, size int) error {
	if len(wire) < size {
		return fmt.Errorf("%d bytes of %d: %w", len(wire), size, ErrCorrupt)
	}
	end := len(wire) - sha256.Size
	if sum := sha256.Sum256(wire[:end]); !bytes.Equal(sum[:], wire[end:]) {
		return fmt.Errorf("hash differs: %w", ErrCorrupt)
	}
	h, err := ParseHeader(wire)
	if err != nil {
		return err
	}
	return h.known()
}

// OpenSlot opens the slot that lies under the name id with a password, or a recovery key as people type it. It returns
// ErrPassword if it is the wrong one, and otherwise what ParseSlot does.
func OpenSlot(repository [16]byte, id ID, wire, password []byte) (*Identity, error) {
	s, err := ParseSlot(repository, id, wire)
	if err != nil {
		return nil, err
	}
	secret := password
	if s.Method == MethodRecovery {
		recovery, err := parseRecovery(password)
		if err != nil {
			return nil, ErrPassword
		}
		secret = recovery[:]
	}
	kek, commitment, err := s.wrapKeys(wire[:slotCommitment], secret)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(commitment[:], wire[slotCommitment:slotWrapped]) {
		return nil, ErrPassword
	}
	wrapped := wire[slotWrapped : len(wire)-sha256.Size]
	keys, err := singleUse(kek).Open(nil, zeroNonce, wrapped, nil)
	if err != nil || len(keys) != 2*KeySize {
		return nil, fmt.Errorf("slot: %w", ErrCorrupt)
	}
	defer clear(keys)
	private, err := ecdh.X25519().NewPrivateKey(keys[:KeySize])
	if err != nil || !bytes.Equal(private.PublicKey().Bytes(), s.public[:]) {
		return nil, fmt.Errorf("slot: key pair: %w", ErrCorrupt)
	}
	return &Identity{slot: s, repository: repository, private: private, auth: Key(keys[KeySize:])}, nil
}

// CheckRecovery returns ErrRecoveryTypo if typed was meant to be a recovery key but cannot be one.
func CheckRecovery(typed []byte) error {
	if _, err := parseRecovery(typed); err == ErrRecoveryTypo {
		return err
	}
	return nil
}

var zeroNonce = make([]byte, chacha20poly1305.NonceSize)

// singleUse returns the cipher for a key that encrypts one message, so that its nonce may be zero.
func singleUse(key Key) cipher.AEAD {
	aead, err := chacha20poly1305.New(key[:])
	if err != nil {
		panic("seal: " + err.Error()) // the key has the right length
	}
	return aead
}
