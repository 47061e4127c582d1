package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// openSmall opens an object that is no multichunk as those do who read it.
func (r *Repository) openSmall(name string, wire []byte) (err error) {
	dir, rest, _ := strings.Cut(name, "/")
	id, _ := parseID(rest)
	switch dir {
	case keysDir:
		_, err = seal.ParseSlot(r.cfg.Repository, id, wire)
	case keyringDir:
		_, _, err = r.identity.OpenKeyring(id, wire)
	case repositoryDir:
		var plain []byte
		if plain, _, err = r.keys.OpenPadded(seal.KindRepository, name, wire); err == nil {
			_, err = parseConfig(plain)
		}
	case clientsDir:
		_, err = r.openRegistration(name, wire)
	case commitsDir:
		_, err = r.openCommit(name, wire)
	case noticesDir:
		_, err = r.openNotice(name, wire)
	case hooksDir:
		_, err = r.openHookList(name, wire)
	case movedDir:
		_, err = r.openMove(name, wire)
	case pastDir:
		_, err = r.openPast(name, wire)
	case settingsDir:
		_, err = r.openSetting(name, wire)
	case ballastDir:
		err = r.openBallast(name, wire)
	default:
		err = ErrNotFound
	}
	return err
}

// small reads the object name and opens it; what is wrong with it is damage.
func (c *checker) small(ctx context.Context, name string) error {
	wire, err := c.r.st.Get(ctx, name, 0, -1)
	switch {
	case errors.Is(err, remote.ErrNotExist):
		return nil // deleted since it was listed
	case err != nil:
		return fmt.Errorf("get %s: %w", name, err)
	}
	err = c.r.openSmall(name, wire)
	switch {
	case errors.Is(err, seal.ErrForeign), errors.Is(err, seal.ErrNotListed):
		return nil // left by an init that stopped half-way, or by a slot that was removed
	case err != nil:
		c.damaged(name, err)
	default:
		c.r.keepCopy(name, wire)
	}
	return nil
}

// copyOf returns an intact copy of an object that is no multichunk, nil if this machine has none.
func (c *checker) copyOf(name string) []byte {
	wire := c.r.opened(name)
	if wire == nil && c.o.Spare != nil {
		wire = c.o.Spare.SpareObject(name)
	}
	if wire == nil || c.r.openSmall(name, wire) != nil {
		return nil
	}
	return wire
}

// opened returns the object name if r was opened with it.
func (r *Repository) opened(name string) []byte {
	dir, rest, _ := strings.Cut(name, "/")
	id, _ := parseID(rest)
	r.keyMu.Lock()
	defer r.keyMu.Unlock()
	switch {
	case r.objects == nil:
	case dir == keysDir:
		return r.objects.slots[id]
	case dir == keyringDir:
		return r.objects.keyrings[id]
	case name == objectName(repositoryDir, seal.ID(r.cfg.Repository)):
		return r.objects.repository
	}
	return nil
}

// isExpendable reports whether a damaged object may be deleted, for nobody misses it or it can be made anew.
func (c *checker) isExpendable(name string) bool {
	dir, rest, _ := strings.Cut(name, "/")
	switch dir {
	case hooksDir, ballastDir, settingsDir:
		return true
	case movedDir: // what it told is found by looking everywhere
		return true
	case noticesDir:
		// What no client has acknowledged no collector has found due, so nobody deletes by it.
		id, _ := parseID(rest)
		return c.survey != nil && !slices.ContainsFunc(slices.Collect(maps.Values(c.survey.heads)), func(head *Commit) bool { return slices.Contains(head.Acks, id) })
	}
	return false
}

// isRepairable reports whether repairSmall can do something.
func (c *checker) isRepairable(name string) bool {
	return c.isExpendable(name) || c.copyOf(name) != nil
}

// repairSmall repairs an object that is no multichunk. It returns nil if nothing can be done.
func (c *checker) repairSmall(ctx context.Context, d *Damage, dry bool) (f *Fix, err error) {
	f = &Fix{Damage: *d, How: "copy"}
	wire := c.copyOf(d.Object)
	switch {
	case wire != nil && !dry:
		f.Refused, err = c.replace(ctx, d.Object, wire, !errors.Is(d.Err, ErrNotFound))
		return f, err
	case wire != nil:
		return f, nil
	case !c.isExpendable(d.Object):
		return nil, nil
	}
	f.How = "removed"
	ballast := strings.HasPrefix(d.Object, ballastDir+"/")
	hooks := strings.HasPrefix(d.Object, hooksDir+"/")
	if ballast || hooks {
		f.How = "renewed"
	}
	if dry {
		return f, nil
	}
	if f.Refused = c.r.st.Delete(ctx, d.Object); f.Refused != nil {
		return f, ctx.Err()
	}
	if ballast {
		return f, c.r.PutBallast(ctx)
	}
	c.unhooked = c.unhooked || hooks
	return f, nil
}

// maxRebuilt is how many multichunks a list of hooks has at most that is made from tables.
const maxRebuilt = 4096

// rebuildHooks makes lists of the hooks of all multichunks of chunks that no list has, after one was lost.
func (c *checker) rebuildHooks(ctx context.Context) error {
	lists, err := c.r.allHookLists(ctx)
	if err != nil {
		return err
	}
	listed := map[Name]bool{}
	for _, l := range lists {
		for i := range l.multichunks {
			listed[l.multichunks[i].Name] = true
		}
	}
	fresh := new(hookList)
	put := func() error {
		if len(fresh.multichunks) == 0 {
			return nil
		}
		defer func() { fresh = new(hookList) }()
		return c.r.putHookList(ctx, fresh)
	}
	for n, size := range c.sizes {
		if listed[n] || c.broken[n] != nil {
			continue
		}
		kind, table, err := c.r.readTable(c.r.RemoteReader(ctx, n), size, n)
		if err != nil && !lostObject(err) {
			return err
		}
		if err != nil || kind != KindData {
			continue
		}
		fresh.multichunks = append(fresh.multichunks, HookedMultichunk{Name: n, Hooks: hooksOf(table)})
		if len(fresh.multichunks) == maxRebuilt {
			if err := put(); err != nil {
				return err
			}
		}
	}
	return put()
}
