package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// OpenOptions are options of Open. Nil is the defaults.
type OpenOptions struct {
	// State is what ExportState returned for the same repository. With it, Open asks the storage for nothing: a
	// password that was good then is good. Default: none.
	State []byte

	// Known is the same for an Open that asks the storage. What is damaged or lost there is taken from it, so that Repair can put it
	// again. Default: none.
	Known []byte

	// Patience is for how long Open waits for a keyring, when the password is right and the storage shows none for it. A change of keys
	// deletes old ones, and a listing may be late with the new one. Default 5 s.
	Patience time.Duration

	// KeepKeys is called with what ExportState returns when keys have been added, before anything is sealed under them. If it
	// fails they are not used. Default: nothing.
	KeepKeys func(state []byte) error
}

// Open opens the repository on st. It returns ErrNoRepository if there is nothing of ours, ErrPassword if no key slot
// opens with password, ErrTwoRepositories, ErrFormat if the repository needs a newer program, ErrCorrupt if an object
// that it cannot do without is damaged, and errors of st.
func Open(ctx context.Context, st remote.Storage, password []byte, o *OpenOptions) (*Repository, error) {
	if o == nil {
		o = new(OpenOptions)
	}
	var (
		settings map[seal.ID][]byte
		failed   error
		reading  sync.WaitGroup // beside the rest, for that the storage may be far away
	)
	if o.State == nil {
		reading.Go(func() {
			settings, failed = fetchSettings(ctx, st, func(seal.ID) bool { return false })
		})
	}
	r, err := openPatiently(ctx, st, password, o)
	reading.Wait()
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, fmt.Errorf("open repository %s: %w", r.cfg.Repository, failed)
	}
	r.takeSettings(settings)
	r.read = settings
	r.keep = o.KeepKeys
	return r, nil
}

// openPatiently opens the repository, and looks again for a while if there is no keyring for a slot that password opens.
func openPatiently(ctx context.Context, st remote.Storage, password []byte, o *OpenOptions) (*Repository, error) {
	patience := cmp.Or(o.Patience, defaultPatience)
	begin := time.Now()
	for {
		r, err := openOnce(ctx, st, password, o)
		if !errors.Is(err, errNoKeyring) || o.State != nil || time.Since(begin) >= patience {
			return r, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(keyringPause, patience)):
		}
	}
}

const (
	defaultPatience = 5 * time.Second // see OpenOptions
	keyringPause    = time.Second     // between two looks
)

// errNoKeyring says that a password opens its slot, and no keyring is sealed to that.
var errNoKeyring = fmt.Errorf("%w: its key slot is in no keyring that the storage shows: it was removed, or keys have just been changed; "+
	"if you did not remove it, wait a minute", ErrPassword)

// openOnce opens the repository with what st shows now, or from what this machine knows of it.
func openOnce(ctx context.Context, st remote.Storage, password []byte, o *OpenOptions) (*Repository, error) {
	fetch := func() (*openObjects, error) { return parseObjects(o.State) }
	if o.State == nil {
		fetch = func() (*openObjects, error) {
			known, err := parseObjects(o.Known)
			if err != nil {
				known = nil
			}
			return fetchObjects(ctx, st, known)
		}
	}
	objects, err := fetch()
	if err != nil {
		return nil, fmt.Errorf("open repository: %w", err)
	}
	r, err := objects.open(st, password)
	if err != nil {
		return nil, fmt.Errorf("open repository %s: %w", objects.id, err)
	}
	return r, nil
}

// ExportState returns what Open needs to open r again without the storage. It holds nothing that the storage does not
// show to everybody.
func (r *Repository) ExportState() []byte {
	r.keyMu.Lock()
	defer r.keyMu.Unlock()
	return appendObjects(nil, r.objects)
}

// openObjects are the small objects that a repository is opened from, as they lie on the remote.
type openObjects struct {
	id         RepositoryID
	repository []byte
	slots      map[seal.ID][]byte
	keyrings   map[seal.ID][]byte
	known      *openObjects     // from before, for what is damaged or lost; nil if there are none
	lent       map[seal.ID]bool // slots that are from known
}

const (
	maxRepositories = 16  // objects looked at in the directory
	maxKeyObjects   = 256 // the same, of slots and of keyrings; most may be left from inits that stopped half-way
)

// fetchObjects fetches everything that Open needs. What is damaged or lost is taken from known, unless that is nil.
func fetchObjects(ctx context.Context, st remote.Storage, known *openObjects) (*openObjects, error) {
	var repositories, slots, keyrings map[seal.ID][]byte
	group, groupCtx := errgroup.WithContext(ctx)
	for _, dir := range []struct {
		name  string
		limit int
		max   int64
		into  *map[seal.ID][]byte
	}{
		{repositoryDir, maxRepositories, maxRepositoryObject, &repositories},
		{keysDir, maxKeyObjects, seal.SlotSize, &slots},
		{keyringDir, maxKeyObjects, seal.MaxKeyring, &keyrings},
	} {
		group.Go(func() (err error) {
			*dir.into, err = fetchDir(groupCtx, st, dir.name, dir.limit, dir.max)
			if known != nil && errors.Is(err, remote.ErrNotExist) {
				err = nil // the last object in it is lost
			}
			return err
		})
	}
	err := group.Wait()
	if errors.Is(err, remote.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoRepository, err)
	}
	if err != nil {
		return nil, err
	}
	id, err := chooseRepository(repositories)
	if err != nil && known.isLeft(repositories, slots, keyrings) {
		id, err = seal.ID(known.id), nil
	}
	if err != nil {
		return nil, err
	}
	o := &openObjects{id: RepositoryID(id), repository: repositories[id], slots: slots, keyrings: keyrings}
	o.takeKnown(known)
	return o, nil
}

// maxRepositoryObject bounds the repository object, in bytes.
const maxRepositoryObject = 64 << 10

// fetchDir fetches all objects in a directory of objects with random names. It leaves out those that are longer than
// max bytes: they are none of ours.
func fetchDir(ctx context.Context, st remote.Storage, dir string, limit int, max int64) (map[seal.ID][]byte, error) {
	var ids []seal.ID
	_, err := listIDs(ctx, st, dir, false, func(id [16]byte, e remote.Entry) {
		if e.Size <= max {
			ids = append(ids, id)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	if len(ids) > limit {
		return nil, fmt.Errorf("list %s: more than %d objects: %w", dir, limit, ErrCorrupt)
	}
	objects := make(map[seal.ID][]byte)
	var mu sync.Mutex // guards objects
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, id := range ids {
		group.Go(func() error {
			wire, err := st.Get(ctx, objectName(dir, id), 0, -1)
			if errors.Is(err, remote.ErrNotExist) {
				return nil // deleted since it was listed
			}
			if err != nil {
				return fmt.Errorf("get %s: %w", objectName(dir, id), err)
			}
			mu.Lock()
			defer mu.Unlock()
			objects[id] = wire
			return nil
		})
	}
	return objects, group.Wait()
}

func objectName(dir string, id seal.ID) string { return fmt.Sprintf("%s/%x", dir, id[:]) }

// chooseRepository returns the one id among repository objects. Short ones were left by an init that stopped half-way.
func chooseRepository(repositories map[seal.ID][]byte) (seal.ID, error) {
	var whole, short []seal.ID
	for id, wire := range repositories {
		if len(wire) < seal.MinWire {
			short = append(short, id)
		} else {
			whole = append(whole, id)
		}
	}
	switch {
	case len(whole) == 1:
		return whole[0], nil
	case len(whole) > 1:
		slices.SortFunc(whole, func(a, b seal.ID) int { return bytes.Compare(a[:], b[:]) })
		return seal.ID{}, fmt.Errorf("%w: %x and %x: init ran on two machines at the same time; "+
			"delete the object repository/<id> of the one that is not used", ErrTwoRepositories, whole[0], whole[1])
	case len(short) > 0:
		return seal.ID{}, fmt.Errorf("%w: %s is half-written or damaged; if init was interrupted here, run it again",
			ErrCorrupt, objectName(repositoryDir, short[0]))
	}
	return seal.ID{}, ErrNoRepository
}

// open opens the repository with a password.
func (o *openObjects) open(st remote.Storage, password []byte) (*Repository, error) {
	identity, keys, err := o.unlock(password)
	if err != nil {
		return nil, err
	}
	name := objectName(repositoryDir, seal.ID(o.id))
	plain, features, err := keys.OpenPadded(seal.KindRepository, name, o.repository)
	if err != nil && o.known != nil {
		if plain, features, err = keys.OpenPadded(seal.KindRepository, name, o.known.repository); err == nil {
			o.repository = o.known.repository
		}
	}
	if err != nil {
		return nil, &ObjectError{name, err}
	}
	o.known = nil
	cfg, err := parseConfig(plain)
	if err != nil {
		return nil, &ObjectError{name, err}
	}
	if cfg.Repository != o.id {
		return nil, &ObjectError{name, corruptf("configuration of another repository")}
	}
	r, err := newRepository(st, keys, cfg)
	if err != nil {
		// Somebody with the keys has sealed it: this program is too old for its chunkers or its compression.
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if features.ReadOnly != 0 {
		r.forbidWriting(fmt.Errorf("repository has features %#x: %w", features.ReadOnly, ErrReadOnly))
	}
	r.objects, r.identity = o, identity
	r.keys.reload = r.ReloadKeys
	return r, nil
}

// unlock finds a slot that opens with password and unites the keyrings that are sealed to it.
func (o *openObjects) unlock(password []byte) (*seal.Identity, *seal.Keyring, error) {
	slots, damaged := o.parseSlots()
	wrong := ErrPassword
	for _, s := range slots {
		identity, err := seal.OpenSlot(o.id, s.ID, o.slots[s.ID], password)
		if errors.Is(err, seal.ErrPassword) {
			continue
		}
		if err != nil {
			damaged = append(damaged, &ObjectError{objectName(keysDir, s.ID), err})
			continue
		}
		keys, roster, err := o.unite(identity)
		if err == nil {
			if o.lent[s.ID] && !isIn(roster, s.ID) {
				err = seal.ErrNotListed
			}
			o.dropRemoved(roster)
		}
		if errors.Is(err, seal.ErrNotListed) {
			wrong = errNoKeyring // it was removed, or adding it has stopped half-way, or the listing is late
			continue
		}
		return identity, keys, err
	}
	switch {
	case wrong != ErrPassword:
		return nil, nil, wrong
	case len(damaged) > 0:
		return nil, nil, fmt.Errorf("no intact key slot opens with this password: %w", errors.Join(damaged...))
	case len(slots) == 0:
		return nil, nil, corruptf("there is no key slot")
	case seal.CheckRecovery(password) != nil:
		return nil, nil, fmt.Errorf("%w: this recovery key has a typing mistake", ErrPassword)
	}
	return nil, nil, wrong
}

// parseSlots returns the slots of this repository in the order in which to try them, those that cost little first.
func (o *openObjects) parseSlots() (slots []seal.Slot, damaged []error) {
	for id, wire := range o.slots {
		s, err := seal.ParseSlot(o.id, id, wire)
		switch {
		case err == nil:
			slots = append(slots, s)
		case !errors.Is(err, seal.ErrForeign):
			damaged = append(damaged, &ObjectError{objectName(keysDir, id), err})
		}
	}
	slices.SortFunc(slots, func(a, b seal.Slot) int {
		if a.Method != b.Method {
			return int(b.Method) - int(a.Method)
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	return slots[:min(len(slots), seal.MaxSlots)], damaged
}

// unite opens the keyrings that are sealed to identity and returns what they hold together. The roster has all slots
// that any of them lists, the oldest first, also those that are removed or whose object is not there.
func (o *openObjects) unite(identity *seal.Identity) (*seal.Keyring, seal.Roster, error) {
	var (
		keys    *seal.Keyring
		listed  = make(map[seal.ID]seal.Listed)
		removed []seal.ID
		damaged []error
	)
	for id, wire := range o.keyrings {
		k, roster, err := identity.OpenKeyring(id, wire)
		switch {
		case errors.Is(err, seal.ErrForeign), errors.Is(err, seal.ErrNotListed):
			continue
		case err != nil:
			damaged = append(damaged, &ObjectError{objectName(keyringDir, id), err})
			continue
		case keys == nil:
			keys = k
		case !keys.SameRoot(k):
			return nil, seal.Roster{}, &ObjectError{objectName(keyringDir, id), corruptf("two keyrings disagree")}
		default:
			keys = keys.Union(k)
		}
		for _, s := range roster.Slots {
			listed[s.ID] = s
		}
		removed = append(removed, slices.DeleteFunc(roster.Removed, func(id seal.ID) bool { return slices.Contains(removed, id) })...)
	}
	if keys == nil {
		if len(damaged) == 0 {
			return nil, seal.Roster{}, seal.ErrNotListed
		}
		return nil, seal.Roster{}, errors.Join(damaged...)
	}
	slots := slices.SortedFunc(maps.Values(listed), func(a, b seal.Listed) int {
		return cmp.Or(a.Created.Compare(b.Created), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return keys, seal.Roster{Slots: slots, Removed: removed}, nil
}

const objectsVersion = 1

// appendObjects encodes o for local disk.
func appendObjects(dst []byte, o *openObjects) []byte {
	dst = append(dst, objectsVersion)
	dst = append(dst, o.id[:]...)
	dst = appendBytes(dst, o.repository)
	for _, objects := range []map[seal.ID][]byte{o.slots, o.keyrings} {
		dst = binary.AppendUvarint(dst, uint64(len(objects)))
		for _, id := range slices.SortedFunc(maps.Keys(objects), func(a, b seal.ID) int { return bytes.Compare(a[:], b[:]) }) {
			dst = append(dst, id[:]...)
			dst = appendBytes(dst, objects[id])
		}
	}
	return dst
}

// parseObjects is the inverse of appendObjects.
func parseObjects(b []byte) (*openObjects, error) {
	d := decoder{b: bytes.Clone(b)}
	if v := d.byte(); v != objectsVersion {
		return nil, corruptf("local copy of the key objects: version %d, want %d", v, objectsVersion)
	}
	o := &openObjects{id: d.bytes16(), repository: d.bytes(d.uvarint(maxRepositoryObject))}
	o.slots, o.keyrings = d.objects(seal.SlotSize), d.objects(seal.MaxKeyring)
	if d.bad || len(d.b) > 0 {
		return nil, corruptf("local copy of the key objects")
	}
	return o, nil
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// objects reads what appendObjects wrote of a directory, whose objects have at most limit bytes.
func (d *decoder) objects(limit int) map[seal.ID][]byte {
	objects := make(map[seal.ID][]byte)
	for range d.count(len(seal.ID{}) + 1) {
		id := seal.ID(d.bytes16())
		objects[id] = d.bytes(d.uvarint(limit))
	}
	return objects
}
