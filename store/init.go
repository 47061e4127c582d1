package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// KDF says how dear it is to try a password.
type KDF = seal.KDF

// DefaultKDF returns what new key slots use by default.
func DefaultKDF() KDF { return seal.DefaultKDF() }

// InitOptions are options of Init. Nil is the defaults.
type InitOptions struct {
	Config   Config // zero fields are the defaults; ids and time are always drawn anew
	KDF      KDF    // default DefaultKDF
	SlotName string // of the password's key slot, default "password"
}

const recoveryName = "recovery"

// Init makes a repository on st, which opens with password or with the recovery key that it returns, to be printed
// once. It returns ErrExists if anything lies there, and ErrTwoRepositories if another Init ran at the same time;
// then its own repository is gone again. An Init that stops half-way leaves nothing that keeps the next one from
// making a repository.
func Init(ctx context.Context, st remote.Storage, password []byte, o *InitOptions) (r *Repository, recovery string, err error) {
	if o == nil {
		o = &InitOptions{}
	}
	if err := checkEmpty(ctx, st); err != nil {
		return nil, "", fmt.Errorf("init: %w", err)
	}
	n, err := newInit(password, o)
	if err != nil {
		return nil, "", fmt.Errorf("init: %w", err)
	}
	// Making the repository first and putting it afterwards finds a bad configuration while nothing is written.
	r, err = n.objects.open(st, password)
	if err != nil {
		return nil, "", fmt.Errorf("init: %w", err)
	}
	if err := n.put(ctx, st); err != nil {
		return nil, "", fmt.Errorf("init: %w; nothing is stored here yet, run it again", err)
	}
	if err := checkAlone(ctx, st, n.objects.id); err != nil {
		return nil, "", fmt.Errorf("init: %w", err)
	}
	_ = r.PutBallast(ctx) // without it the repository is one too; gc puts it then
	return r, n.recovery, nil
}

// checkEmpty returns an error unless st is empty, or holds only what an Init leaves that stopped half-way.
func checkEmpty(ctx context.Context, st remote.Storage) error {
	var dirs []string
	err := st.List(ctx, "", func(e remote.Entry) error {
		if !e.Dir || !slices.Contains([]string{repositoryDir, keysDir, keyringDir}, e.Name) {
			return fmt.Errorf("%w: %q lies there; a new repository needs an empty directory", ErrExists, e.Name)
		}
		dirs = append(dirs, e.Name)
		return nil
	})
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		foreign, err := listIDs(ctx, st, dir, false, func([16]byte, remote.Entry) {})
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		if foreign > 0 {
			return fmt.Errorf("%w: %q holds files that are none of ours; a new repository needs an empty directory", ErrExists, dir)
		}
	}
	repositories, err := fetchDir(ctx, st, repositoryDir, maxRepositories, maxRepositoryObject)
	if err != nil {
		return err
	}
	for id, wire := range repositories {
		if len(wire) >= seal.MinWire {
			return fmt.Errorf("%w: there is a repository already: %x", ErrExists, id[:])
		}
	}
	return nil
}

// newRepositoryObjects is a repository that has not been put yet.
type newRepositoryObjects struct {
	objects  *openObjects
	slots    []seal.ID // in the order in which to put them
	keyring  seal.ID
	recovery string
}

// newInit makes all objects of a new repository.
func newInit(password []byte, o *InitOptions) (*newRepositoryObjects, error) {
	cfg := o.Config.withDefaults()
	rand.Read(cfg.Repository[:])
	rand.Read(cfg.Volume[:])
	cfg.Created = time.Now().UTC()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	kdf, slotName := o.KDF, o.SlotName
	if kdf == (KDF{}) {
		kdf = DefaultKDF()
	}
	if slotName == "" {
		slotName = "password"
	}
	if err := checkNewSlot(slotName, password, nil); err != nil {
		return nil, err
	}
	identity, slotWire, err := seal.NewIdentity(cfg.Repository, password, kdf)
	if err != nil {
		return nil, err
	}
	spare, spareWire, recovery, err := identity.AddRecovery()
	if err != nil {
		return nil, err
	}
	keys := seal.NewKeyring(cfg.Repository)
	listed := []seal.Listed{identity.List(slotName, cfg.Created), spare.List(recoveryName, cfg.Created)}
	keyring, keyringWire, err := identity.SealKeyring(keys, seal.Roster{Slots: listed})
	if err != nil {
		return nil, err
	}
	name := objectName(repositoryDir, seal.ID(cfg.Repository))
	repository, err := keys.SealPadded(seal.KindRepository, name, appendConfig(nil, &cfg), seal.Features{})
	if err != nil {
		return nil, err
	}
	slots := []seal.ID{identity.Slot().ID, spare.Slot().ID}
	return &newRepositoryObjects{
		objects: &openObjects{
			id:         cfg.Repository,
			repository: repository,
			slots:      map[seal.ID][]byte{slots[0]: slotWire, slots[1]: spareWire},
			keyrings:   map[seal.ID][]byte{keyring: keyringWire},
		},
		slots:    slots,
		keyring:  keyring,
		recovery: recovery,
	}, nil
}

// put puts all objects, the repository object last: without it the others are nothing.
func (n *newRepositoryObjects) put(ctx context.Context, st remote.Storage) error {
	for _, id := range n.slots {
		if err := putSmall(ctx, st, objectName(keysDir, id), n.objects.slots[id]); err != nil {
			return err
		}
	}
	if err := putSmall(ctx, st, objectName(keyringDir, n.keyring), n.objects.keyrings[n.keyring]); err != nil {
		return err
	}
	return putSmall(ctx, st, objectName(repositoryDir, seal.ID(n.objects.id)), n.objects.repository)
}

// checkAlone takes the repository id back if there is another one. Nobody uses it yet.
func checkAlone(ctx context.Context, st remote.Storage, id RepositoryID) error {
	repositories, err := fetchDir(ctx, st, repositoryDir, maxRepositories, maxRepositoryObject)
	if err != nil {
		return err
	}
	for other, wire := range repositories {
		if other == seal.ID(id) || len(wire) < seal.MinWire {
			continue
		}
		err := fmt.Errorf("%w: init ran on another machine at the same time", ErrTwoRepositories)
		if deleteErr := st.Delete(ctx, objectName(repositoryDir, seal.ID(id))); deleteErr != nil {
			return errors.Join(err, deleteErr)
		}
		return fmt.Errorf("%w; this one was taken back", err)
	}
	return nil
}

// checkNewSlot returns an error unless a slot can be added under name to those that are listed.
func checkNewSlot(name string, password []byte, listed []seal.Listed) error {
	if err := seal.CheckSlotName(name); err != nil {
		return err
	}
	if len(password) == 0 {
		return errors.New("the password is empty")
	}
	for _, s := range listed {
		if strings.EqualFold(s.Name, name) {
			return fmt.Errorf("there is a key slot %q already", s.Name)
		}
	}
	return nil
}
