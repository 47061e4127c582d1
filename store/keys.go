package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// A Slot is one of the passwords and recovery keys that open the repository.
type Slot struct {
	ID       string // hex
	Name     string
	Created  time.Time
	Recovery bool // opened by a printed key, not by a password
	KDF      KDF  // of passwords
	Current  bool // the one that was opened
	Removed  bool // it was removed, but the storage has refused to delete it: it still opens what it did then
}

// Slots returns all slots, the oldest first.
func (r *Repository) Slots(ctx context.Context) ([]Slot, error) {
	c, err := r.beginKeyChange(ctx)
	if err != nil {
		return nil, fmt.Errorf("list key slots: %w", err)
	}
	defer c.end()
	var slots []Slot
	for _, s := range c.listed {
		slots = append(slots, r.slotOf(s, c.objects.slots[s.ID]))
	}
	for _, s := range c.undead {
		slot := r.slotOf(s, c.objects.slots[s.ID])
		slot.Removed = true
		slots = append(slots, slot)
	}
	return slots, nil
}

func (r *Repository) slotOf(s seal.Listed, wire []byte) Slot {
	slot := Slot{
		ID:       hex.EncodeToString(s.ID[:]),
		Name:     s.Name,
		Created:  s.Created,
		Recovery: s.Method == seal.MethodRecovery,
		Current:  s.ID == r.identity.Slot().ID,
	}
	// A slot that is damaged is listed all the same: it can be removed.
	if open, err := seal.ParseSlot(r.cfg.Repository, s.ID, wire); err == nil {
		slot.KDF = open.KDF
	}
	return slot
}

// AddSlot makes password open the repository too. The zero KDF is the default.
func (r *Repository) AddSlot(ctx context.Context, name string, password []byte, kdf KDF) (Slot, error) {
	if kdf == (KDF{}) {
		kdf = DefaultKDF()
	}
	c, err := r.beginKeyChange(ctx)
	if err != nil {
		return Slot{}, fmt.Errorf("add key slot: %w", err)
	}
	defer c.end()
	if err := checkNewSlot(name, password, c.listed); err != nil {
		return Slot{}, fmt.Errorf("add key slot: %w", err)
	}
	added, wire, err := r.identity.AddPassword(password, kdf)
	if err != nil {
		return Slot{}, fmt.Errorf("add key slot: %w", err)
	}
	s := added.List(name, time.Now().UTC())
	if err := c.apply(ctx, &s, wire, nil); err != nil {
		return Slot{}, fmt.Errorf("add key slot: %w", err)
	}
	return r.slotOf(s, wire), nil
}

// AddRecovery makes a new recovery key and returns it as it is to be printed. Older ones stay good until they are
// removed.
func (r *Repository) AddRecovery(ctx context.Context) (printed string, err error) {
	c, err := r.beginKeyChange(ctx)
	if err != nil {
		return "", fmt.Errorf("add recovery key: %w", err)
	}
	defer c.end()
	added, wire, printed, err := r.identity.AddRecovery()
	if err != nil {
		return "", fmt.Errorf("add recovery key: %w", err)
	}
	s := added.List(c.freeName(recoveryName), time.Now().UTC())
	if err := c.apply(ctx, &s, wire, nil); err != nil {
		return "", fmt.Errorf("add recovery key: %w", err)
	}
	return printed, nil
}

// RemoveSlot makes a password or recovery key useless. The last one cannot be removed. Somebody who has kept a copy
// of the slot object can still open what is sealed now; where the storage refuses to delete, everybody can who knows
// the old password, and the error says so. Then removing can be tried again.
func (r *Repository) RemoveSlot(ctx context.Context, idOrName string) error {
	c, err := r.beginKeyChange(ctx)
	if err != nil {
		return fmt.Errorf("remove key slot: %w", err)
	}
	defer c.end()
	s, err := c.find(idOrName)
	if err != nil {
		return fmt.Errorf("remove key slot: %w", err)
	}
	if len(c.listed) == 1 && c.listed[0].ID == s.ID {
		return fmt.Errorf("remove key slot %q: it is the last one", s.Name)
	}
	if err := c.apply(ctx, nil, nil, &s); err != nil {
		return fmt.Errorf("remove key slot %q: %w", s.Name, err)
	}
	return nil
}

// ChangePassword replaces the slot that r was opened with by one of the same name for another password. If the old
// one cannot be removed, both are good, and the error says so.
func (r *Repository) ChangePassword(ctx context.Context, password []byte) error {
	c, err := r.beginKeyChange(ctx)
	if err != nil {
		return fmt.Errorf("change password: %w", err)
	}
	defer c.end()
	current := r.identity.Slot()
	i := slices.IndexFunc(c.listed, func(s seal.Listed) bool { return s.ID == current.ID })
	switch {
	case current.Method != seal.MethodPassword:
		return errors.New("change password: the repository was opened with a recovery key; add a password and remove the old one")
	case i < 0:
		return errors.New("change password: the key slot of the old password has been removed")
	case len(password) == 0:
		return errors.New("change password: the password is empty")
	}
	old := c.listed[i]
	added, wire, err := r.identity.AddPassword(password, current.KDF)
	if err != nil {
		return fmt.Errorf("change password: %w", err)
	}
	s := added.List(old.Name, time.Now().UTC())
	if err := c.apply(ctx, &s, wire, &old); err != nil {
		return fmt.Errorf("change password: %w", err)
	}
	r.identity = added
	return nil
}

// keyChange is a change of slots that has read what is there. It holds r.keyMu until end.
type keyChange struct {
	r       *Repository
	objects *openObjects
	keys    *seal.Keyring
	removed []seal.ID
	listed  []seal.Listed // slots whose object is there
	undead  []seal.Listed // the same, but they have been removed
}

func (r *Repository) beginKeyChange(ctx context.Context) (*keyChange, error) {
	r.keyMu.Lock()
	c := &keyChange{r: r}
	if err := c.load(ctx); err != nil {
		r.keyMu.Unlock()
		return nil, err
	}
	return c, nil
}

func (c *keyChange) end() { c.r.keyMu.Unlock() }

func (c *keyChange) load(ctx context.Context) (err error) {
	if c.r.identity == nil {
		panic("store: keys of a repository that was not opened with one")
	}
	if c.objects, err = fetchObjects(ctx, c.r.st, nil); err != nil {
		return err
	}
	if c.objects.id != c.r.cfg.Repository {
		return fmt.Errorf("another repository lies there: %s", c.objects.id)
	}
	keys, roster, err := c.objects.unite(c.r.identity)
	if errors.Is(err, seal.ErrNotListed) {
		return errNoKeyring
	}
	if err != nil {
		return err
	}
	// Its own slot may be gone while a keyring is still sealed to it.
	own, err := c.isThere(ctx, c.r.identity.Slot().ID)
	if err == nil && !own {
		err = fmt.Errorf("%w: the key slot that this repository was opened with has been removed", ErrPassword)
	}
	if err != nil {
		return err
	}
	c.keys, c.removed = keys, roster.Removed
	for _, s := range roster.Slots {
		there, err := c.isThere(ctx, s.ID)
		switch {
		case err != nil:
			return err
		case there && slices.Contains(c.removed, s.ID):
			c.undead = append(c.undead, s)
		case there:
			c.listed = append(c.listed, s)
		}
	}
	return c.r.replaceObjects(c.objects, keys)
}

// isThere reports whether the object of a slot exists. Its name decides, not the listing: that may be behind.
func (c *keyChange) isThere(ctx context.Context, id seal.ID) (bool, error) {
	if c.objects.slots[id] != nil {
		return true, nil
	}
	wire, err := c.r.st.Get(ctx, objectName(keysDir, id), 0, -1)
	switch {
	case errors.Is(err, remote.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get %s: %w", objectName(keysDir, id), err)
	}
	c.objects.slots[id] = wire
	return true, nil
}

// find returns the slot with an id or a name.
func (c *keyChange) find(idOrName string) (seal.Listed, error) {
	var found []seal.Listed
	for _, s := range slices.Concat(c.listed, c.undead) {
		if hex.EncodeToString(s.ID[:]) == idOrName {
			return s, nil
		}
		if s.Name == idOrName {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return seal.Listed{}, fmt.Errorf("no key slot has the name or id %q", idOrName)
	case 1:
		return found[0], nil
	}
	return seal.Listed{}, fmt.Errorf("%d key slots have the name %q; give the id", len(found), idOrName)
}

// freeName returns name, with a number if there is a slot of that name.
func (c *keyChange) freeName(name string) string {
	candidate := name
	for n := 2; slices.ContainsFunc(c.listed, func(s seal.Listed) bool { return s.Name == candidate }); n++ {
		candidate = fmt.Sprintf("%s %d", name, n)
	}
	return candidate
}

// apply adds one slot and removes another; either may be nil. In this order: the new slot, a keyring for those that
// there will be, and only then deletions. Whatever it is stopped by, or happens at the same time, no slot that is
// good before and after is ever without a keyring.
func (c *keyChange) apply(ctx context.Context, add *seal.Listed, wire []byte, remove *seal.Listed) error {
	if err := c.r.ReadOnly(); err != nil {
		return err
	}
	listed, removed := slices.Clone(c.listed), c.removed
	if remove != nil {
		listed = slices.DeleteFunc(listed, func(s seal.Listed) bool { return s.ID == remove.ID })
		removed = append(slices.DeleteFunc(removed, func(id seal.ID) bool { return id == remove.ID }), remove.ID)
	}
	if add != nil {
		listed = append(listed, *add)
		if len(listed) > seal.MaxSlots {
			return fmt.Errorf("there are %d key slots already; remove one first", len(c.listed))
		}
		if err := putSmall(ctx, c.r.st, objectName(keysDir, add.ID), wire); err != nil {
			return err
		}
		c.objects.slots[add.ID] = wire
	}
	id, keyring, err := c.r.identity.SealKeyring(c.keys, seal.Roster{Slots: listed, Removed: removed})
	if err != nil {
		return err
	}
	if err := putSmall(ctx, c.r.st, objectName(keyringDir, id), keyring); err != nil {
		return err
	}
	if remove != nil {
		if err := c.deleteSlot(ctx, remove.ID); err != nil {
			return err
		}
	}
	c.deleteKeyrings(ctx, remove != nil)
	c.objects.keyrings[id] = keyring
	return nil
}

func (c *keyChange) deleteSlot(ctx context.Context, id seal.ID) error {
	name := objectName(keysDir, id)
	err := c.r.st.Delete(ctx, name)
	if err == nil {
		if _, err = c.r.st.Get(ctx, name, 0, -1); errors.Is(err, remote.ErrNotExist) {
			delete(c.objects.slots, id)
			return nil
		}
		if err == nil {
			err = errors.New("it is still there")
		}
	}
	return fmt.Errorf("delete %s: %w; the old password still opens the repository", name, err)
}

// deleteKeyrings deletes all keyrings that went into the new one, or only those that an earlier change has taken the place of. When a
// slot was removed all must go: they are sealed to it. Otherwise those from before stay until the next change, for listings may show
// the new one late. Whatever stays is united with it.
func (c *keyChange) deleteKeyrings(ctx context.Context, all bool) {
	open := make(map[seal.ID]openKeyring)
	for id, wire := range c.objects.keyrings {
		if keys, roster, err := c.r.identity.OpenKeyring(id, wire); err == nil {
			open[id] = openKeyring{keys, roster}
		}
	}
	for id, k := range open {
		replaced := all
		for other, o := range open {
			replaced = replaced || other != id && k.within(o) && !o.within(k)
		}
		if replaced && c.r.st.Delete(ctx, objectName(keyringDir, id)) == nil {
			delete(c.objects.keyrings, id)
		}
	}
}

// openKeyring is what one keyring holds.
type openKeyring struct {
	keys   *seal.Keyring
	roster seal.Roster
}

// within reports whether o has all keys of k, and knows all of its slots and removals.
func (k openKeyring) within(o openKeyring) bool {
	mine, _ := o.keys.Union(k.keys).Epochs()
	theirs, _ := o.keys.Epochs()
	if mine != theirs {
		return false
	}
	for _, s := range k.roster.Slots {
		listed := func(l seal.Listed) bool { return l.ID == s.ID }
		if !slices.ContainsFunc(o.roster.Slots, listed) && !slices.Contains(o.roster.Removed, s.ID) {
			return false
		}
	}
	return !slices.ContainsFunc(k.roster.Removed, func(id seal.ID) bool { return !slices.Contains(o.roster.Removed, id) })
}
