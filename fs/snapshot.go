package fs

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// Snapshot is a state of the volume that has a name.
type Snapshot struct {
	Name      string    `json:"name"` // of an automatic state its time
	Time      time.Time `json:"time"`
	Host      string    `json:"host"`
	Message   string    `json:"message,omitempty"`
	Tags      []string  `json:"tags,omitempty"`
	Hold      bool      `json:"hold,omitempty"` // is never forgotten by rules
	Forgotten bool      `json:"forgotten,omitempty"`
	Automatic bool      `json:"automatic,omitempty"` // nobody has named it
	Client    string    `json:"client"`

	Root  store.Ref `json:"-"`
	Order uint64    `json:"-"` // above that of all snapshots that its maker knew; 0 in old records
}

// latestName is the name of the newest snapshot in the virtual directory.
const latestName = "latest"

// snapshotEdit changes the map of snapshots in a local commit whose tree is root.
type snapshotEdit func(ctx context.Context, nodes tree.Store, snaps, root store.Ref) (store.Ref, error)

// ErrNoSnapshot says that there is no snapshot of a name.
var ErrNoSnapshot = fmt.Errorf("no such snapshot; list them with: dedupfs snapshot list: %w", syscall.ENOENT)

// ErrSnapshotExists says that a name is taken.
var ErrSnapshotExists = fmt.Errorf("there is a snapshot of this name already; choose another one: %w", syscall.EEXIST)

const snapshotVersion = 2

// appendSnapshot encodes s. The root of a forgotten snapshot stands in the value, where garbage collection does not look: what
// only it held can be collected, and until then it can be brought back.
func appendSnapshot(dst []byte, s *Snapshot) []byte {
	flags := byte(0)
	if s.Hold {
		flags |= 1
	}
	if s.Forgotten {
		flags |= 2
	}
	if s.Automatic {
		flags |= 4
	}
	dst = append(dst, snapshotVersion, flags)
	dst = binary.AppendVarint(dst, s.Time.Unix())
	dst = binary.AppendUvarint(dst, uint64(s.Time.Nanosecond()))
	for _, str := range []string{s.Host, s.Client, s.Message, strings.Join(s.Tags, "\x00")} {
		dst = binary.AppendUvarint(dst, uint64(len(str)))
		dst = append(dst, str...)
	}
	dst = binary.AppendUvarint(dst, s.Order)
	if s.Forgotten && !s.Root.IsZero() {
		dst = appendRoot(dst, s.Root)
	}
	return dst
}

// rootSize is the length of a root in a record, in bytes.
const rootSize = 32 + 16 + 8

func appendRoot(dst []byte, ref store.Ref) []byte {
	dst = append(append(dst, ref.ID[:]...), ref.Hint.Multichunk[:]...)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, ref.Hint.Off), ref.Hint.Len)
}

func parseRoot(r *reader) store.Ref {
	ref := store.Ref{Kind: store.RefNode}
	copy(ref.ID[:], r.bytes(len(ref.ID)))
	copy(ref.Hint.Multichunk[:], r.bytes(len(ref.Hint.Multichunk)))
	if b := r.bytes(8); b != nil {
		ref.Hint.Off, ref.Hint.Len = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	}
	return ref
}

func parseSnapshot(e *store.Entry) (*Snapshot, error) {
	r := reader{b: e.Value}
	version := r.byte()
	if version < 1 || version > snapshotVersion {
		return nil, fmt.Errorf("snapshot record version %d: %w", version, errRecord)
	}
	flags := r.byte()
	s := &Snapshot{Name: string(e.Key), Hold: flags&1 != 0, Forgotten: flags&2 != 0, Automatic: flags&4 != 0}
	if s.Automatic {
		s.Name = strings.TrimPrefix(s.Name, automaticMark)
	}
	s.Time = time.Unix(r.varint(), int64(r.uvarint())).UTC()
	var tags string
	for _, str := range []*string{&s.Host, &s.Client, &s.Message, &tags} {
		*str = string(r.lenBytes())
	}
	if tags != "" {
		s.Tags = strings.Split(tags, "\x00")
	}
	if version > 1 {
		s.Order = r.uvarint()
	}
	switch {
	case len(e.Refs) > 0:
		s.Root = e.Refs[0]
	case s.Forgotten && len(r.b) > 0:
		s.Root = parseRoot(&r)
	}
	if r.bad || len(r.b) != 0 || len(e.Refs) > 1 {
		return nil, errRecord
	}
	return s, nil
}

// key returns the key of the record of s.
func (s *Snapshot) key() string {
	if s.Automatic {
		return automaticMark + s.Name
	}
	return s.Name
}

func (s *Snapshot) entry() *store.Entry {
	e := &store.Entry{Key: []byte(s.key()), Value: appendSnapshot(nil, s)}
	if !s.Root.IsZero() && !s.Forgotten {
		e.Refs = []store.Ref{s.Root}
	}
	return e
}

// CheckSnapshotName refuses names that could not stand in a directory, or be typed.
func CheckSnapshotName(name string) error {
	if err := checkName([]byte(name)); err != nil || name == latestName || strings.ContainsAny(name, "\n@:") {
		return fmt.Errorf("snapshot name %q: use up to 255 bytes without / : @, and not %q", name, latestName)
	}
	return nil
}

// CreateSnapshot names the state of this moment. It is durable on this machine when it returns. Name and time are set
// from the clock if they are missing.
func (v *Volume) CreateSnapshot(ctx context.Context, s Snapshot) (Snapshot, error) {
	return v.nameState(ctx, s, func([]Snapshot, store.Ref) error { return nil })
}

// nameState is CreateSnapshot if allowed agrees, which is shown all snapshots that have a name, the oldest first, and the state that is
// to be named.
func (v *Volume) nameState(ctx context.Context, s Snapshot, allowed func([]Snapshot, store.Ref) error) (Snapshot, error) {
	if v.opt.ReadOnly {
		return Snapshot{}, syscall.EROFS
	}
	s.Time = v.opt.Now().UTC()
	unnamed := s.Name == ""
	if unnamed {
		s.Name = s.Time.Format(snapshotTimeName)
	}
	if err := CheckSnapshotName(s.Name); err != nil {
		return Snapshot{}, err
	}
	s.Host, s.Client = v.name(), fmt.Sprintf("%x", v.me[:])
	if err := checkSnapshotSize(&s); err != nil {
		return Snapshot{}, err
	}
	err := v.commits.commit(ctx, func(ctx context.Context, nodes tree.Store, snaps, root store.Ref) (store.Ref, error) {
		t := tree.New(nodes, snaps, v.treeOptions())
		all, err := allSnapshots(ctx, t)
		if err != nil {
			return store.Ref{}, err
		}
		for _, other := range all {
			s.Order = max(s.Order, other.Order+1)
		}
		all = named(all)
		if err := allowed(all, root); err != nil {
			return store.Ref{}, err
		}
		taken := func() bool {
			return slices.ContainsFunc(all, func(o Snapshot) bool { return o.Name == s.Name && !o.Forgotten })
		}
		for n := 2; unnamed && taken(); n++ { // several of one second
			s.Name = fmt.Sprintf("%s-%d", s.Time.Format(snapshotTimeName), n)
		}
		if taken() {
			return store.Ref{}, ErrSnapshotExists
		}
		s.Order = max(s.Order, 1)
		s.Root = root
		return t.Apply(ctx, slices.Values([]tree.Edit{{Key: []byte(s.Name), Entry: s.entry()}}))
	})
	if err == nil {
		v.snapshotsChanged(s.Name)
	}
	return s, err
}

// snapshotsChanged makes the kernel look again at the names of snapshots.
func (v *Volume) snapshotsChanged(names ...string) {
	if n := v.notifier(); n != nil {
		v.snapshots.tell(n, names)
	}
}

// snapshotMap returns the map of snapshots as it is now.
func (v *Volume) snapshotMap() *tree.Tree {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return tree.New(remoteNodes{v.ca}, v.snapMap, v.treeOptions())
}

// Snapshots lists the snapshots that have a name, the oldest first.
func (v *Volume) Snapshots(ctx context.Context) ([]Snapshot, error) {
	snaps, err := v.AllSnapshots(ctx)
	return named(snaps), err
}

// named returns the snapshots that are not automatic.
func named(snaps []Snapshot) []Snapshot {
	return slices.DeleteFunc(slices.Clone(snaps), func(s Snapshot) bool { return s.Automatic })
}

// AllSnapshots lists the snapshots, automatic states too, the oldest first.
func (v *Volume) AllSnapshots(ctx context.Context) ([]Snapshot, error) {
	return listSnapshots(ctx, v.snapshotMap())
}

// listSnapshots returns the snapshots of a map that are not forgotten, automatic states too, the oldest first.
func listSnapshots(ctx context.Context, t *tree.Tree) ([]Snapshot, error) {
	snaps, err := allSnapshots(ctx, t)
	return slices.DeleteFunc(snaps, func(s Snapshot) bool { return s.Forgotten }), err
}

// allSnapshots returns the snapshots of a map, forgotten ones too, the oldest first.
func allSnapshots(ctx context.Context, t *tree.Tree) ([]Snapshot, error) {
	var snaps []Snapshot
	it := t.Seek(ctx, nil)
	for it.Next(ctx) {
		e := it.Entry()
		s, err := parseSnapshot(&e)
		if err != nil {
			return nil, fmt.Errorf("snapshot %q: %w", e.Key, err)
		}
		snaps = append(snaps, *s)
	}
	slices.SortFunc(snaps, compareAge)
	return snaps, it.Err()
}

// Snapshot returns the snapshot of a name; "latest" is the newest.
func (v *Volume) Snapshot(ctx context.Context, name string) (Snapshot, error) {
	return v.snapshot(ctx, name)
}

func (v *Volume) snapshot(ctx context.Context, name string) (Snapshot, error) {
	if name == latestName {
		snaps, err := v.Snapshots(ctx)
		if err == nil && len(snaps) == 0 {
			err = ErrNoSnapshot
		}
		if err != nil {
			return Snapshot{}, err
		}
		return snaps[len(snaps)-1], nil
	}
	t := v.snapshotMap()
	e, ok, err := t.Get(ctx, []byte(name))
	if err == nil && !ok {
		e, ok, err = t.Get(ctx, []byte(automaticMark+name))
	}
	if err != nil {
		return Snapshot{}, err
	}
	if !ok {
		return Snapshot{}, ErrNoSnapshot
	}
	s, err := parseSnapshot(&e)
	if err != nil {
		return Snapshot{}, err
	}
	if s.Forgotten {
		return Snapshot{}, ErrNoSnapshot
	}
	return *s, nil
}
