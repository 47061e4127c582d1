package fs

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// Query says which files Find is to find. Zero fields ask for nothing.
type Query struct {
	Patterns   []string  `json:"patterns,omitempty"` // any of these: of names, or of whole paths if there is a slash in it
	IgnoreCase bool      `json:"ignore_case,omitempty"`
	Types      []uint32  `json:"types,omitempty"`    // as in st_mode
	MinSize    int64     `json:"min_size,omitempty"` // bytes
	MaxSize    int64     `json:"max_size,omitempty"` // bytes; 0 is no bound
	Newer      time.Time `json:"newer,omitzero"`
	Older      time.Time `json:"older,omitzero"`
	In         []string  `json:"in,omitempty"` // names of states, each with a colon and a path if not all of it is meant; all if there is none
}

// Match is a file that was found.
type Match struct {
	Snapshot string    `json:"snapshot"`
	Path     string    `json:"path"`
	Mode     uint32    `json:"mode"` // as in st_mode
	Size     uint64    `json:"size"`
	Mtime    time.Time `json:"mtime"`
	Ino      uint64    `json:"ino"`
}

// Check refuses patterns that are none.
func (q *Query) Check() error {
	for _, p := range q.Patterns {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	return nil
}

// Find calls fn with each file that a query asks for, state by state, in the order of paths.
func (v *Volume) Find(ctx context.Context, q *Query, fn func(Match) error) error {
	if err := q.Check(); err != nil {
		return err
	}
	places := q.In
	if len(places) == 0 {
		snaps, err := v.Snapshots(ctx)
		if err != nil {
			return err
		}
		for _, s := range snaps {
			places = append(places, s.Name)
		}
		places = append(places, CurrentState)
	}
	for _, place := range places {
		name, at, r, ino, err := v.resolvePlace(ctx, place)
		if err != nil {
			return err
		}
		f := &finder{q: q, snapshot: name, r: r, fn: fn}
		prefix := strings.TrimSuffix(path.Clean("/"+at), "/")
		if err := f.dir(ctx, ino, prefix, 0); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

// finder looks through one state.
type finder struct {
	q        *Query
	snapshot string
	r        *layered
	fn       func(Match) error
}

type dirChild struct {
	name string
	ino  Ino
	mode uint32 // its type
}

// childrenOf returns the entries of a directory in the order of their names.
func childrenOf(ctx context.Context, r records, dir Ino) ([]dirChild, error) {
	var all []dirChild
	var bad error
	err := r.scan(ctx, string(key(dir, keyEntry, 0)), prefixEnd(dir, keyEntry), func(k string, e *store.Entry) bool {
		_, _, rest, _ := splitKey(k)
		_, name, ok := splitEntry(rest)
		ino, mode, err := parseEntryValue(e.Value)
		if !ok || err != nil {
			bad = fmt.Errorf("entry in directory %d: %w", dir, errRecord)
			return false
		}
		all = append(all, dirChild{name, ino, mode})
		return true
	})
	if err == nil {
		err = bad
	}
	slices.SortFunc(all, func(a, b dirChild) int { return strings.Compare(a.name, b.name) })
	return all, err
}

func (f *finder) dir(ctx context.Context, dir Ino, prefix string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: too deep: %w", prefix, errRecord)
	}
	children, err := childrenOf(ctx, f.r, dir)
	if err != nil {
		return err
	}
	for _, c := range children {
		at := prefix + "/" + c.name
		if f.q.matchesName(c.name, at) && f.q.matchesType(c.mode) {
			if err := f.file(ctx, c.ino, at); err != nil {
				return err
			}
		}
		if c.mode == syscall.S_IFDIR {
			if err := f.dir(ctx, c.ino, at, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// file gives a file of the right name to who asked, if it is right otherwise too.
func (f *finder) file(ctx context.Context, ino Ino, at string) error {
	a, err := loadAttrs(ctx, f.r, ino)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	q, mtime := f.q, a.Mtime.Time()
	switch {
	case int64(a.Size) < q.MinSize, q.MaxSize > 0 && int64(a.Size) > q.MaxSize:
		return nil
	case !q.Newer.IsZero() && !mtime.After(q.Newer), !q.Older.IsZero() && !mtime.Before(q.Older):
		return nil
	}
	return f.fn(Match{f.snapshot, at, a.Mode, a.Size, mtime.UTC(), uint64(ino)})
}

func (q *Query) matchesType(mode uint32) bool {
	return len(q.Types) == 0 || slices.Contains(q.Types, mode)
}

func (q *Query) matchesName(name, at string) bool {
	if len(q.Patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(q.Patterns, func(p string) bool {
		text := name
		if strings.Contains(p, "/") {
			text, p = strings.TrimPrefix(at, "/"), strings.TrimPrefix(p, "/")
		}
		if q.IgnoreCase {
			text, p = strings.ToLower(text), strings.ToLower(p)
		}
		ok, _ := path.Match(p, text) // checked before
		return ok
	})
}
