package store

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// A ClientID names a client: one machine's cache directory. It is random.
type ClientID [16]byte

// NewClientID returns a random id.
func NewClientID() (c ClientID) {
	rand.Read(c[:])
	return c
}

// String returns the id in lower-case hex, as it stands on the remote.
func (c ClientID) String() string { return hex.EncodeToString(c[:]) }

func (c ClientID) short() string { return c.String()[:8] }

// An Incarnation names one life of a client's local state, and through its public key all that is signed in it.
type Incarnation [16]byte

// String returns the incarnation in lower-case hex, as it stands on the remote.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

func (i Incarnation) short() string { return i.String()[:8] }

// maxInodeRange bounds Registration.InodeRange.
const maxInodeRange = 1<<29 - 1

// A Registration makes a client known before it writes anything.
type Registration struct {
	Client      ClientID
	Incarnation Incarnation
	PublicKey   ed25519.PublicKey
	InodeRange  uint32 // of 29 bits, not 0: the upper part of the inode numbers that the client gives
	Host        string // for display only
	Time        time.Time
}

// incarnation returns the name of the incarnation with the given public key.
func (r *Repository) incarnation(c ClientID, public ed25519.PublicKey) Incarnation {
	b := append([]byte("dedupfs 1 incarnation\x00"), r.cfg.Repository[:]...)
	b = append(b, c[:]...)
	sum := sha256.Sum256(append(b, public...))
	return Incarnation(sum[:16])
}

func appendRegistration(dst []byte, g *Registration) []byte {
	dst = append(dst, g.Client[:]...)
	dst = append(dst, g.PublicKey...)
	dst = binary.BigEndian.AppendUint32(dst, g.InodeRange)
	dst = appendTime(dst, g.Time)
	return appendText(dst, g.Host)
}

// parseRegistration is the inverse of appendRegistration. The incarnation is not in the bytes: it follows from the
// public key.
func parseRegistration(b []byte) (*Registration, error) {
	d := decoder{b: b}
	g := &Registration{
		Client:     d.bytes16(),
		PublicKey:  bytes.Clone(d.bytes(ed25519.PublicKeySize)),
		InodeRange: d.uint32(),
		Time:       d.time(),
		Host:       d.text(maxText),
	}
	if d.bad || g.InodeRange == 0 || g.InodeRange > maxInodeRange {
		return nil, corruptf("registration")
	}
	return g, nil
}

// registrationMessage is what the incarnation signs.
func (r *Repository) registrationMessage(name string, body []byte) []byte {
	m := append([]byte("dedupfs 1 registration\x00"), r.cfg.Repository[:]...)
	return append(append(m, name...), body...)
}

// Register makes a new incarnation of client c known, and returns its key. The inode range is one that nobody else has.
func (r *Repository) Register(ctx context.Context, c ClientID, host string) (*Registration, ed25519.PrivateKey, error) {
	if err := r.ReadOnly(); err != nil {
		return nil, nil, err
	}
	for range registerTries {
		others, err := r.Registrations(ctx)
		if err != nil && !aboutObject(err) {
			return nil, nil, fmt.Errorf("register client %s: %w", c, err)
		}
		if _, err := r.ReadPast(ctx); err != nil && !aboutObject(err) {
			return nil, nil, fmt.Errorf("register client %s: %w", c, err)
		}
		s, key, err := r.PrepareRegistration(c, host, others)
		if err == nil {
			err = r.PutRegistration(ctx, s)
		}
		if errors.Is(err, ErrRangeTaken) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("register client %s: %w", c, err)
		}
		return &s.Registration, key, nil
	}
	return nil, nil, fmt.Errorf("register client %s: every inode range drawn was taken", c)
}

const registerTries = 16

// ErrRangeTaken says that a registration was taken back because another has its inode range.
var ErrRangeTaken = errors.New("another client has the same range of inode numbers")

// A SealedRegistration is a registration ready to be put, with the same bytes however often it takes. A client that keeps it on its
// disk before the first attempt does not leave one behind under which nobody lives.
type SealedRegistration struct {
	Registration
	Name string // on the remote
	Wire []byte
}

// PrepareRegistration makes a registration of a new incarnation of client c, and returns its key. The inode range is one that none of
// others has.
func (r *Repository) PrepareRegistration(c ClientID, host string, others []Registration) (*SealedRegistration, ed25519.PrivateKey, error) {
	if err := r.ReadOnly(); err != nil {
		return nil, nil, err
	}
	return r.sealRegistration(c, host, r.drawRange(others))
}

// PutRegistration puts a registration and reads it back. It may be repeated. If another one has the inode range it takes this one
// back, and returns ErrRangeTaken.
func (r *Repository) PutRegistration(ctx context.Context, s *SealedRegistration) error {
	if err := r.putCopied(ctx, s.Name, s.Wire); err != nil {
		return fmt.Errorf("put registration: %w", err)
	}
	taken, err := r.isTaken(ctx, &s.Registration)
	if err != nil || !taken {
		return err
	}
	// Nothing has been done under this incarnation. Where deleting is refused it stays and costs a range.
	_ = r.TakeBack(ctx, s.Name)
	return ErrRangeTaken
}

// TakeBack deletes the registration that lies under name, of an incarnation that has published nothing and will not.
func (r *Repository) TakeBack(ctx context.Context, name string) error {
	if err := r.st.Delete(ctx, name); err != nil && !errors.Is(err, remote.ErrNotExist) {
		return fmt.Errorf("take registration back: %w", err)
	}
	r.registrations.Delete(name)
	return nil
}

func (r *Repository) sealRegistration(c ClientID, host string, inodes uint32) (*SealedRegistration, ed25519.PrivateKey, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	s := &SealedRegistration{Registration: Registration{
		Client:      c,
		Incarnation: r.incarnation(c, public),
		PublicKey:   public,
		InodeRange:  inodes,
		Host:        clip(host, maxText),
		Time:        time.Now().UTC(),
	}}
	var suffix [16]byte
	rand.Read(suffix[:])
	s.Name = clientsDir + "/" + c.String() + "/" + s.Incarnation.String() + "-" + hex.EncodeToString(suffix[:])
	body := appendRegistration(nil, &s.Registration)
	signature := ed25519.Sign(key, r.registrationMessage(s.Name, body))
	s.Wire, err = r.keys.SealPadded(seal.KindRegistration, s.Name, append(signature, body...), seal.Features{})
	return s, key, err
}

// drawRange returns an inode range that none of others has, and nobody who is past had, as far as ReadPast has found.
func (r *Repository) drawRange(others []Registration) uint32 {
	for {
		n := r.random() & maxInodeRange
		free := n > 0 && !r.past.hasRange(n)
		for _, g := range others {
			free = free && g.InodeRange != n
		}
		if free {
			return n
		}
	}
}

// isTaken reports whether a registration that was made at the same time has the inode range of g. Who sees that gives
// way, for it may be that only one of the two does.
func (r *Repository) isTaken(ctx context.Context, g *Registration) (bool, error) {
	others, err := r.Registrations(ctx)
	if err != nil && !aboutObject(err) {
		return false, err
	}
	for _, other := range others {
		if other.InodeRange == g.InodeRange && other.Incarnation != g.Incarnation {
			return true, nil
		}
	}
	return false, nil
}

// Registrations returns all that are there. If some of them are damaged or too new it returns the others, and their
// *ObjectErrors joined.
func (r *Repository) Registrations(ctx context.Context) ([]Registration, error) {
	names, err := r.registrationNames(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mu      sync.Mutex // guards all and damaged
		all     []Registration
		damaged []error
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, name := range names {
		group.Go(func() error {
			g, err := r.registration(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all = append(all, *g)
			case errors.Is(err, remote.ErrNotExist): // taken back since it was listed
			case aboutObject(err):
				damaged = append(damaged, err)
			default:
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return all, errors.Join(damaged...)
}

// maxRegistrationWire bounds a registration on the remote, in bytes; what is longer is none of ours.
const maxRegistrationWire = 64 << 10

// parallel is how many small objects are asked for at the same time.
const parallel = 8

func (r *Repository) registrationNames(ctx context.Context) ([]string, error) {
	var clients []ClientID
	_, err := listIDs(ctx, r.st, clientsDir, true, func(id [16]byte, _ remote.Entry) { clients = append(clients, id) })
	if err != nil {
		return nil, fmt.Errorf("list clients: %w", err)
	}
	names := make([][]string, len(clients))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, c := range clients {
		group.Go(func() error {
			dir := clientsDir + "/" + c.String()
			seen := make(map[string]bool)
			err := r.st.List(ctx, dir, func(e remote.Entry) error {
				if _, _, ok := parsePair(e.Name); ok && !e.Dir && !seen[e.Name] && e.Size <= maxRegistrationWire {
					names[i] = append(names[i], dir+"/"+e.Name)
					seen[e.Name] = true
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("list %s: %w", dir, err)
			}
			return nil
		})
	}
	err = group.Wait()
	return slices.Concat(names...), err
}

// registration returns the registration that lies under name, from memory if it has been read before.
func (r *Repository) registration(ctx context.Context, name string) (*Registration, error) {
	if g, ok := r.registrations.Load(name); ok {
		return g.(*Registration), nil
	}
	g, _, err := getSealed(ctx, r, name, r.openRegistration)
	if err != nil {
		return nil, err
	}
	r.registrations.Store(name, g)
	return g, nil
}

func (r *Repository) openRegistration(name string, wire []byte) (*Registration, error) {
	plain, _, err := r.keys.OpenPadded(seal.KindRegistration, name, wire)
	if err != nil {
		return nil, err
	}
	if len(plain) < ed25519.SignatureSize {
		return nil, corruptf("registration of %d bytes", len(plain))
	}
	signature, body := plain[:ed25519.SignatureSize], plain[ed25519.SignatureSize:]
	g, err := parseRegistration(body)
	if err != nil {
		return nil, err
	}
	g.Incarnation = r.incarnation(g.Client, g.PublicKey)
	prefix := clientsDir + "/" + g.Client.String() + "/" + g.Incarnation.String() + "-"
	if len(name) < len(prefix) || name[:len(prefix)] != prefix {
		return nil, corruptf("registration lies under a name that is not its own")
	}
	if !ed25519.Verify(g.PublicKey, r.registrationMessage(name, body), signature) {
		return nil, corruptf("registration: wrong signature")
	}
	return g, nil
}

// randomUint32 is the source of inode ranges.
func randomUint32() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:])
}
