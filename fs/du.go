package fs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"syscall"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// DirUsage is what a directory holds, with all that lies below it. Hard links count once, for the first directory that has one, and so
// do chunks for Unique and Stored.
type DirUsage struct {
	Path      string `json:"path"`
	Files     uint64 `json:"files"`
	Logical   uint64 `json:"logical"`   // sizes of files
	Allocated uint64 `json:"allocated"` // of these, what is not a hole
	Unique    uint64 `json:"unique"`    // chunks, each once
	Stored    uint64 `json:"stored"`    // of these, compressed
}

func (u *DirUsage) add(o DirUsage) {
	u.Files, u.Logical, u.Allocated = u.Files+o.Files, u.Logical+o.Logical, u.Allocated+o.Allocated
	u.Unique, u.Stored = u.Unique+o.Unique, u.Stored+o.Stored
}

// DiskUsage calls fn with what each directory at and below a place holds, as far down as depth, what is in a directory before
// itself. The place is the name of a state, with a colon and a path if not all of it is meant.
func (v *Volume) DiskUsage(ctx context.Context, place string, depth int, fn func(DirUsage) error) error {
	_, at, r, ino, err := v.resolvePlace(ctx, place)
	if err != nil {
		return err
	}
	d := &duWalk{v: v, r: r, fn: fn, inodes: map[Ino]bool{}, chunks: map[uint64]bool{}, shares: map[store.Name]map[uint64]uint64{}}
	at = path.Clean("/" + at)
	a, err := loadAttrs(ctx, r, ino)
	if err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		u, err := d.file(ctx, ino)
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		u.Path = at
		return fn(u)
	}
	_, err = d.dir(ctx, ino, at, depth, 0)
	return err
}

// duWalk adds up one state.
type duWalk struct {
	v      *Volume
	r      *layered
	fn     func(DirUsage) error
	inodes map[Ino]bool    // files with several names that were counted
	chunks map[uint64]bool // chunks that were counted
	shares map[store.Name]map[uint64]uint64
}

func (d *duWalk) dir(ctx context.Context, dir Ino, at string, depth, level int) (DirUsage, error) {
	sum := DirUsage{Path: at}
	if level > maxDepth {
		return sum, fmt.Errorf("%s: too deep: %w", at, errRecord)
	}
	children, err := childrenOf(ctx, d.r, dir)
	if err != nil {
		return sum, fmt.Errorf("%s: %w", at, err)
	}
	for _, c := range children {
		var one DirUsage
		below := path.Join(at, c.name)
		if c.mode == syscall.S_IFDIR {
			one, err = d.dir(ctx, c.ino, below, depth-1, level+1)
		} else if one, err = d.file(ctx, c.ino); err != nil {
			err = fmt.Errorf("%s: %w", below, err)
		}
		if err != nil {
			return sum, err
		}
		sum.add(one)
	}
	if depth >= 0 {
		return sum, d.fn(sum)
	}
	return sum, nil
}

func (d *duWalk) file(ctx context.Context, ino Ino) (u DirUsage, err error) {
	a, err := loadAttrs(ctx, d.r, ino)
	if err != nil {
		return u, err
	}
	if a.Nlink > 1 {
		if d.inodes[ino] {
			return u, nil
		}
		d.inodes[ino] = true
	}
	u.Files = 1
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return u, nil
	}
	m, err := loadExtentMap(ctx, d.r, ino)
	if err != nil {
		return u, err
	}
	u.Logical, u.Allocated = a.Size, min(m.Allocated, a.Size)
	var bad error
	err = d.v.contentReader(*m).chunks(ctx, 0, func(c chunkAt) bool {
		fp := fingerprint(c.ref.ID)
		if d.chunks[fp] {
			return true
		}
		d.chunks[fp] = true
		u.Unique += uint64(c.n)
		share, err := d.share(ctx, c.ref)
		bad = err
		u.Stored += share
		return err == nil
	})
	if err == nil {
		err = bad
	}
	return u, err
}

// share returns what a chunk takes on the remote; zero if it is not there yet.
func (d *duWalk) share(ctx context.Context, ref store.Ref) (uint64, error) {
	h := d.v.ca.HintOf(ref)
	if h.IsZero() {
		return 0, nil
	}
	shares, ok := d.shares[h.Multichunk]
	if !ok {
		_, table, err := d.v.repo.ReadTable(d.v.repo.RemoteReader(ctx, h.Multichunk), -1, h.Multichunk)
		if err != nil && !errors.Is(err, remote.ErrNotExist) {
			return 0, err
		}
		shares = map[uint64]uint64{}
		for i, share := range sharesOf(table) {
			shares[fingerprint(table[i].ID)] = share
		}
		d.shares[h.Multichunk] = shares
	}
	return shares[fingerprint(ref.ID)], nil
}
