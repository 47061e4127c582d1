package fs

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// keyConflict is the kind of a mark, below inode 0: this inode has got its name from a merge. It tells where to look, and
// nothing more: the inode may have gone since, or have another name.
const keyConflict = 0x11

func conflictKey(ino Ino) string {
	return string(binary.BigEndian.AppendUint64(key(0, keyConflict, 8), uint64(ino)))
}

func isConflictKey(k string) bool {
	ino, kind, rest, ok := splitKey(k)
	return ok && ino == 0 && kind == keyConflict && len(rest) == 8
}

// Conflict is a file or directory that two clients have changed at once, under the name that a merge has given it.
type Conflict struct {
	Path  string    `json:"path"`
	Of    string    `json:"of"` // the path without what the merge has added: what has won, if it is still there
	Size  uint64    `json:"size"`
	Mtime time.Time `json:"mtime"`
}

// Conflicts returns what is still under a name that a merge has given it.
func (v *Volume) Conflicts(ctx context.Context) (all []Conflict, err error) {
	err = v.view(ctx, func(r *layered) error {
		all, err = conflictsIn(ctx, r)
		return err
	})
	return all, err
}

func conflictsIn(ctx context.Context, r *layered) ([]Conflict, error) {
	var marked []Ino
	err := r.scan(ctx, string(key(0, keyConflict, 0)), prefixEnd(0, keyConflict), func(k string, _ *store.Entry) bool {
		if isConflictKey(k) {
			marked = append(marked, Ino(binary.BigEndian.Uint64([]byte(k[9:]))))
		}
		return true
	})
	var all []Conflict
	for _, ino := range marked {
		if err != nil {
			return nil, err
		}
		var a *attrs
		a, err = loadAttrs(ctx, r, ino)
		if errors.Is(err, syscall.ENOENT) {
			err = nil
			continue
		}
		if err == nil {
			all, err = appendConflicts(ctx, all, r, ino, a)
		}
	}
	return all, err
}

// appendConflicts adds the names of ino that a merge has given.
func appendConflicts(ctx context.Context, all []Conflict, r *layered, ino Ino, a *attrs) ([]Conflict, error) {
	w, err := loadVersion(ctx, r, ino)
	if err != nil {
		return nil, err
	}
	for _, l := range w.links {
		if strings.Contains(l.name, conflictMark) {
			dir := dirPath(ctx, r, l.parent) + "/"
			all = append(all, Conflict{dir + l.name, dir + plainName(l.name), a.Size, a.Mtime.Time().UTC()})
		}
	}
	return all, nil
}
