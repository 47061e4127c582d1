package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// keyring is the keys of a repository as they were read last. Keys are only ever added. What opens with none of them may be sealed
// under a key that is newer: then they are read again, once in a while.
type keyring struct {
	now    atomic.Pointer[seal.Keyring]
	reload func(context.Context) error // nil if there is nothing to read them from

	mu   sync.Mutex // guards last; held while keys are read
	last time.Time  // when they were
}

const (
	reloadPause = 10 * time.Second // between two times that keys are read because of an object
	reloadWait  = 10 * time.Second // for the storage
)

func newKeyringOf(keys *seal.Keyring) *keyring {
	k := new(keyring)
	k.now.Store(keys)
	return k
}

// errKeep says that new keys are not used because this machine cannot keep them.
var errKeep = errors.New("keep keys on this machine")

// Derive returns the key for a purpose, which is the same in every epoch.
func (k *keyring) Derive(purpose string) seal.Key { return k.now.Load().Derive(purpose) }

// Seal is that of the newest keys, as are the others.
func (k *keyring) Seal(dst []byte, kind seal.Kind, name string, plaintext []byte) ([]byte, error) {
	return k.now.Load().Seal(dst, kind, name, plaintext)
}

func (k *keyring) SealPadded(kind seal.Kind, name string, plaintext []byte, f seal.Features) ([]byte, error) {
	return k.now.Load().SealPadded(kind, name, plaintext, f)
}

func (k *keyring) Open(dst []byte, kind seal.Kind, name string, wire []byte) (plain []byte, err error) {
	err = k.try(func(keys *seal.Keyring) (err error) {
		plain, err = keys.Open(dst, kind, name, wire)
		return err
	})
	return plain, err
}

func (k *keyring) OpenPadded(kind seal.Kind, name string, wire []byte) (plain []byte, f seal.Features, err error) {
	err = k.try(func(keys *seal.Keyring) (err error) {
		plain, f, err = keys.OpenPadded(kind, name, wire)
		return err
	})
	return plain, f, err
}

func (k *keyring) OpenRange(ra io.ReaderAt, wireSize int64, kind seal.Kind, name string, off, n int) (plain []byte, err error) {
	err = k.try(func(keys *seal.Keyring) (err error) {
		plain, err = keys.OpenRange(ra, wireSize, kind, name, off, n)
		return err
	})
	return plain, err
}

// try runs open, and again if there are newer keys than it had.
func (k *keyring) try(open func(*seal.Keyring) error) error {
	had := k.now.Load()
	err := open(had)
	if !errors.Is(err, seal.ErrEpoch) || k.reload == nil {
		return err
	}
	if now := k.renewed(had); now != had {
		return open(now)
	}
	return err
}

// renewed returns keys that are newer than had, if there are.
func (k *keyring) renewed(had *seal.Keyring) *seal.Keyring {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.now.Load(); now != had || time.Since(k.last) < reloadPause {
		return now
	}
	ctx, cancel := context.WithTimeout(context.Background(), reloadWait)
	defer cancel()
	// If they cannot be read now, the object cannot be opened now.
	_ = k.reload(ctx)
	k.last = time.Now()
	return k.now.Load()
}

// ReloadKeys reads the keyrings that have been put since they were read last. What is sealed from then on is sealed under the
// newest key.
func (r *Repository) ReloadKeys(ctx context.Context) error {
	r.keyMu.Lock()
	defer r.keyMu.Unlock()
	if r.identity == nil {
		return nil
	}
	fresh, err := r.freshKeyrings(ctx)
	if err != nil {
		return fmt.Errorf("read keys again: %w", err)
	}
	return r.adopt(fresh)
}

// freshKeyrings fetches the keyrings that are not known yet. r.keyMu is held.
func (r *Repository) freshKeyrings(ctx context.Context) (map[seal.ID][]byte, error) {
	fresh := make(map[seal.ID][]byte)
	var ids []seal.ID
	_, err := listIDs(ctx, r.st, keyringDir, false, func(id [16]byte, e remote.Entry) {
		if r.objects.keyrings[id] == nil && e.Size <= seal.MaxKeyring && len(ids) < maxKeyObjects {
			ids = append(ids, id)
		}
	})
	for i := 0; err == nil && i < len(ids); i++ {
		var wire []byte
		wire, err = r.st.Get(ctx, objectName(keyringDir, ids[i]), 0, -1)
		if errors.Is(err, remote.ErrNotExist) {
			err = nil // deleted since it was listed
			continue
		}
		fresh[ids[i]] = wire
	}
	return fresh, err
}

// adopt adds the keys in keyrings to those of r. r.keyMu is held.
func (r *Repository) adopt(keyrings map[seal.ID][]byte) error {
	keys := r.keys.now.Load()
	next := &openObjects{id: r.objects.id, repository: r.objects.repository, slots: r.objects.slots, keyrings: make(map[seal.ID][]byte)}
	for id, wire := range r.objects.keyrings {
		next.keyrings[id] = wire
	}
	for id, wire := range keyrings {
		k, _, err := r.identity.OpenKeyring(id, wire)
		if err != nil || !keys.SameRoot(k) {
			continue // not for this slot, left by somebody else, or damaged, which check finds
		}
		next.keyrings[id] = wire
		keys = keys.Union(k)
	}
	if len(next.keyrings) == len(r.objects.keyrings) {
		return nil
	}
	return r.replaceObjects(next, keys)
}

// replaceObjects makes o, which has keys, what r is opened with. Before anything is sealed under new keys,
// OpenOptions.KeepKeys is told. r.keyMu is held.
func (r *Repository) replaceObjects(o *openObjects, keys *seal.Keyring) error {
	had := r.keys.now.Load()
	keys = had.Union(keys)
	before, _ := had.Epochs()
	if n, _ := keys.Epochs(); n > before {
		if r.keep != nil {
			if err := r.keep(appendObjects(nil, o)); err != nil {
				return fmt.Errorf("%w: %w", errKeep, err)
			}
		}
		r.keys.now.Store(keys)
	}
	r.objects = o
	return nil
}

// RotateKey begins a new epoch: what this and, as soon as they see it, all other clients seal from then on opens only with keys
// that no keyring of before holds. It needs no other slot's password. What was sealed before stays as it is.
func (r *Repository) RotateKey(ctx context.Context) error {
	c, err := r.beginKeyChange(ctx)
	if err != nil {
		return fmt.Errorf("rotate key: %w", err)
	}
	defer c.end()
	if err := r.ReadOnly(); err != nil {
		return fmt.Errorf("rotate key: %w", err)
	}
	keys, err := c.keys.NextEpoch()
	if err != nil {
		return fmt.Errorf("rotate key: %w", err)
	}
	id, wire, err := r.identity.SealKeyring(keys, seal.Roster{Slots: c.listed, Removed: c.removed})
	if err == nil {
		err = putSmall(ctx, r.st, objectName(keyringDir, id), wire)
	}
	if err == nil {
		// The older keyrings stay: listings may show the new one late, and nobody can do without any.
		err = r.adopt(map[seal.ID][]byte{id: wire})
	}
	if err != nil {
		return fmt.Errorf("rotate key: %w", err)
	}
	return nil
}

// Epochs returns how many keys there have been, and the number of the newest.
func (r *Repository) Epochs() (n int, newest uint32) { return r.keys.now.Load().Epochs() }
