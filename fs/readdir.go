package fs

import (
	"context"
	"fmt"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// readdirBatch is how many entries are taken under the lock at a time.
const readdirBatch = 128

// Readdir calls fn for the entries of a directory behind cookie, in the order of their cookies, until it returns false.
// 0 is the start; a cookie stays good after a remount and on every client. With plus the entries carry attributes, and
// each that fn took counts one look-up. What comes or goes during a listing may be missing or not, everything else is
// there exactly once.
func (v *Volume) Readdir(ctx context.Context, ino Ino, cookie uint64, plus bool, fn func(DirEntry) bool) error {
	if isSnapshotIno(ino) {
		return v.snapshots.readdir(ctx, ino, cookie, plus, fn)
	}
	dots := func() (parent Ino, err error) {
		err = v.view(ctx, func(r *layered) error {
			if in := v.table[ino]; in != nil && (in.orphan || in.cutOff) {
				parent = ino
				return nil
			}
			parent, err = parentOf(ctx, r, ino)
			return err
		})
		return parent, err
	}
	batch := func(from uint64) (es []DirEntry, err error) {
		err = v.view(ctx, func(r *layered) error {
			es, err = v.listBatch(ctx, r, ino, from, plus, func(child Ino) (Attr, error) { return v.attrOf(ctx, r, child) })
			return err
		})
		return es, err
	}
	return v.list(ino, cookie, dots, batch, fn)
}

// list calls fn for ".", ".." and then batch after batch.
func (v *Volume) list(ino Ino, cookie uint64, parent func() (Ino, error), batch func(from uint64) ([]DirEntry, error), fn func(DirEntry) bool) error {
	if cookie < 1 && !fn(DirEntry{Name: []byte("."), Ino: ino, Type: syscall.S_IFDIR, Cookie: 1}) {
		return nil
	}
	if cookie < 2 {
		p, err := parent()
		if err != nil {
			return err
		}
		if !fn(DirEntry{Name: []byte(".."), Ino: p, Type: syscall.S_IFDIR, Cookie: 2}) {
			return nil
		}
		cookie = 2
	}
	for {
		es, err := batch(cookie + 1)
		if err != nil {
			return err
		}
		for _, e := range es {
			if e.Attr != nil {
				v.lookups.add(e.Ino) // before fn passes it on: a forget may follow at once
			}
			if !fn(e) {
				if e.Attr != nil {
					v.lookups.sub(e.Ino, 1)
				}
				return nil
			}
			cookie = e.Cookie
		}
		if len(es) < readdirBatch {
			return nil
		}
	}
}

// listBatch returns up to readdirBatch entries of a directory from a cookie on.
func (v *Volume) listBatch(ctx context.Context, r records, ino Ino, from uint64, plus bool, attr func(Ino) (Attr, error)) ([]DirEntry, error) {
	es := make([]DirEntry, 0, readdirBatch)
	var bad error
	err := r.scan(ctx, entryKey(ino, from, nil), prefixEnd(ino, keyEntry), func(k string, e *store.Entry) bool {
		_, _, rest, _ := splitKey(k)
		cookie, name, ok := splitEntry(rest)
		child, mode, err := parseEntryValue(e.Value)
		if !ok || err != nil {
			bad = fmt.Errorf("entry in directory %d: %w", ino, errRecord)
			return false
		}
		es = append(es, DirEntry{Name: []byte(name), Ino: child, Type: mode, Cookie: cookie})
		return len(es) < readdirBatch
	})
	if err == nil {
		err = bad
	}
	if err != nil || !plus {
		return es, err
	}
	for i := range es {
		a, err := attr(es[i].Ino)
		if err != nil {
			return nil, err
		}
		es[i].Attr = &a
	}
	return es, nil
}
