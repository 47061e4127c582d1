package fs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// What can have happened to a file between two states.
const (
	Added    = "added"
	Removed  = "removed"
	Modified = "modified" // other content, or another target of a symbolic link
	Moved    = "moved"
	ModeOf   = "mode" // other permissions, owner or group
	XattrOf  = "xattr"
)

// Change is what has become of one name between two states.
type Change struct {
	Path    string    `json:"path"`
	From    string    `json:"from,omitempty"` // of what was moved
	What    []string  `json:"what"`
	Mode    uint32    `json:"mode"` // as in st_mode, of the newer state that has it
	Size    uint64    `json:"size"`
	OldSize uint64    `json:"old_size"`
	Mtime   time.Time `json:"mtime"`
}

// CurrentState stands for the volume as it is now where a snapshot is named.
const CurrentState = "current"

// resolvePlace returns what a place means: the name of a state, with a colon and a path if not all of it is meant.
func (v *Volume) resolvePlace(ctx context.Context, place string) (name, at string, r *layered, ino Ino, err error) {
	name, at, _ = strings.Cut(place, ":")
	if r, _, err = v.state(ctx, name); err != nil {
		return name, at, nil, 0, err
	}
	if ino, err = v.resolvePath(ctx, r, at); err != nil {
		return name, at, nil, 0, fmt.Errorf("%s: %w", place, err)
	}
	return name, at, r, ino, nil
}

// state returns the tree that a name means: of a snapshot, or the newest local commit, which has all changes so far.
func (v *Volume) state(ctx context.Context, name string) (*layered, store.Ref, error) {
	root := store.Ref{}
	if name == CurrentState {
		if !v.opt.ReadOnly {
			if err := v.commits.commit(ctx, nil); err != nil {
				return nil, root, err
			}
		}
		v.mu.RLock()
		root = v.base.Root()
		v.mu.RUnlock()
	} else {
		s, err := v.snapshot(ctx, name)
		if err != nil {
			return nil, root, fmt.Errorf("%s: %w", name, err)
		}
		root = s.Root
	}
	return v.stateAt(root), root, nil
}

// stateAt returns the records of the tree with a root, from wherever they are.
func (v *Volume) stateAt(root store.Ref) *layered {
	return &layered{base: tree.New(remoteNodes{v.ca}, root, v.treeOptions())}
}

// Diff returns what has changed from one state to another, in the order of paths. Its cost is that of what differs: a directory
// that was moved is one change, whatever is in it.
func (v *Volume) Diff(ctx context.Context, from, to string) ([]Change, error) {
	a, _, err := v.state(ctx, from)
	if err != nil {
		return nil, err
	}
	b, _, err := v.state(ctx, to)
	if err != nil {
		return nil, err
	}
	d := &stateDiff{old: newPaths(a), new: newPaths(b)}
	return d.run(ctx)
}

// stateDiff compares two states.
type stateDiff struct {
	old, new *paths
	gone     map[string]*fileAt // names that have lost their inode, and are not moved
	come     map[string]*fileAt
	changes  []Change
}

// fileAt is an inode under one name.
type fileAt struct {
	path string
	is   version
}

func (d *stateDiff) run(ctx context.Context) ([]Change, error) {
	touched := map[Ino]bool{}
	err := tree.Diff(ctx, d.old.r.base, d.new.r.base, func(k []byte, before, after *store.Entry) error {
		if isConflictKey(string(k)) {
			return nil
		}
		return touch(touched, string(k), before, after)
	})
	if err != nil {
		return nil, err
	}
	d.gone, d.come = map[string]*fileAt{}, map[string]*fileAt{}
	for _, ino := range slices.Sorted(maps.Keys(touched)) {
		if err := d.inode(ctx, ino); err != nil {
			return nil, err
		}
	}
	d.names()
	slices.SortFunc(d.changes, func(x, y Change) int { return strings.Compare(x.Path, y.Path) })
	return d.changes, nil
}

// inode notes what has become of an inode and its names.
func (d *stateDiff) inode(ctx context.Context, ino Ino) error {
	was, err := loadVersion(ctx, d.old.r, ino)
	if err != nil {
		return err
	}
	is, err := loadVersion(ctx, d.new.r, ino)
	if err != nil {
		return err
	}
	if ino == Root {
		d.change(&Change{Path: "/"}, &was, &is)
		return nil
	}
	lost := without(was.links, is.links)
	gained := without(is.links, was.links)
	for _, l := range is.links {
		if slices.Contains(was.links, l) {
			d.change(&Change{Path: d.new.of(ctx, l)}, &was, &is)
		}
	}
	for len(lost) > 0 && len(gained) > 0 {
		d.change(&Change{Path: d.new.of(ctx, gained[0]), From: d.old.of(ctx, lost[0]), What: []string{Moved}}, &was, &is)
		lost, gained = lost[1:], gained[1:]
	}
	for _, l := range lost {
		path := d.old.of(ctx, l)
		d.gone[path] = &fileAt{path, was}
	}
	for _, l := range gained {
		path := d.new.of(ctx, l)
		d.come[path] = &fileAt{path, is}
	}
	return nil
}

func without(links, others []nameIn) []nameIn {
	return slices.DeleteFunc(slices.Clone(links), func(l nameIn) bool { return slices.Contains(others, l) })
}

// names notes what has come and what has gone. A file that stands in the place of another, as editors save, is the same file
// modified.
func (d *stateDiff) names() {
	for path, was := range d.gone {
		is := d.come[path]
		if is != nil && !is.is.isDir() && sameType(&was.is, &is.is) {
			d.change(&Change{Path: path}, &was.is, &is.is)
			delete(d.come, path)
			continue
		}
		a := was.is.attrs
		d.changes = append(d.changes, Change{Path: path, What: []string{Removed}, Mode: a.Mode, OldSize: a.Size, Mtime: a.Mtime.Time().UTC()})
	}
	for path, is := range d.come {
		a := is.is.attrs
		d.changes = append(d.changes, Change{Path: path, What: []string{Added}, Mode: a.Mode, Size: a.Size, Mtime: a.Mtime.Time().UTC()})
	}
}

func sameType(x, y *version) bool { return x.attrs.Mode&syscall.S_IFMT == y.attrs.Mode&syscall.S_IFMT }

// change notes c, if anything has changed, with what differs between two versions of a file.
func (d *stateDiff) change(c *Change, was, is *version) {
	if was.attrs == nil || is.attrs == nil {
		return
	}
	a, b := was.attrs, is.attrs
	if !is.isDir() && (!sameContent(was, is) || string(a.Target) != string(b.Target) || a.Rdev != b.Rdev || !sameExtra(was, is, keyTarget)) {
		c.What = append(c.What, Modified)
	}
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid {
		c.What = append(c.What, ModeOf)
	}
	if !sameExtra(was, is, keyXattr) {
		c.What = append(c.What, XattrOf)
	}
	if len(c.What) == 0 {
		return
	}
	c.Mode, c.Size, c.OldSize, c.Mtime = b.Mode, b.Size, a.Size, b.Mtime.Time().UTC()
	d.changes = append(d.changes, *c)
}

// sameExtra reports whether two versions have the same records of a kind.
func sameExtra(x, y *version, kind byte) bool {
	of := func(n *version) map[string]*store.Entry {
		m := maps.Clone(n.extra)
		maps.DeleteFunc(m, func(k string, _ *store.Entry) bool { return k[0] != kind })
		return m
	}
	return maps.EqualFunc(of(x), of(y), sameRecord)
}

// paths finds the paths of a state, and remembers those of directories.
type paths struct {
	r    *layered
	dirs map[Ino]string
}

func newPaths(r *layered) *paths { return &paths{r, map[Ino]string{Root: ""}} }

func (p *paths) of(ctx context.Context, l nameIn) string {
	return p.dir(ctx, l.parent, 0) + "/" + l.name
}

func (p *paths) dir(ctx context.Context, dir Ino, depth int) string {
	if path, ok := p.dirs[dir]; ok {
		return path
	}
	path := "/?"
	if up := linksOf(ctx, p.r, dir); len(up) > 0 && depth < maxDepth {
		path = p.dir(ctx, up[0].parent, depth+1) + "/" + up[0].name
	}
	p.dirs[dir] = path
	return path
}

// resolvePath returns the inode that a path has in a state, following no symbolic links; ENOENT if it has none.
func (v *Volume) resolvePath(ctx context.Context, r *layered, path string) (Ino, error) {
	ino := Root
	for _, name := range strings.Split(strings.Trim(path, "/"), "/") {
		if name == "" || name == "." {
			continue
		}
		f, _, err := v.findFolded(ctx, r, ino, []byte(name))
		if err != nil {
			return 0, err
		}
		if f == nil {
			return 0, syscall.ENOENT
		}
		ino = f.ino
	}
	return ino, nil
}

// isGone reports whether err says that something is not on the remote any more.
func isGone(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, errNotExist)
}
