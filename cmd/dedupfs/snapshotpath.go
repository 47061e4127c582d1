package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/dedupfs/dedupfs/fs"
)

// snapshotsDir is where snapshots are found under the root of a volume.
const snapshotsDir = ".snapshots"

// currentState stands for the volume as it is now wherever the name of a
// snapshot is expected. The word for the newest snapshot is known to package fs.
const currentState = "current"

// snapshotPath is a place in a snapshot, written SNAPSHOT[:PATH].
type snapshotPath struct {
	snapshot string
	path     string // slash-separated, relative to the root; "" is the root
}

func parseSnapshotPath(s string) (snapshotPath, error) {
	snapshot, rest, _ := strings.Cut(s, ":")
	if snapshot == "" {
		return snapshotPath{}, usageError("%q names no snapshot; write SNAPSHOT or SNAPSHOT:PATH, as in latest:docs", s)
	}
	clean := strings.TrimPrefix(path.Clean("/"+rest), "/")
	return snapshotPath{snapshot, clean}, nil
}

func (p snapshotPath) String() string {
	return p.snapshot + ":/" + p.path
}

// find returns what p names in v. It follows no symbolic links.
func (p snapshotPath) find(ctx context.Context, v *fs.Volume) (fs.Attr, error) {
	at, err := v.Getattr(ctx, fs.Root, nil)
	for _, name := range p.names() {
		if err != nil {
			break
		}
		at, err = v.Lookup(ctx, at.Ino, []byte(name))
	}
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return fs.Attr{}, fmt.Errorf("%s: not there; see `dedupfs snapshot list` and `dedupfs ls`", escape(p.String()))
	}
	if err != nil {
		return fs.Attr{}, fmt.Errorf("%s: %w", escape(p.String()), err)
	}
	return at, nil
}

// names returns the names to look up, one in the other, from the root of a volume.
func (p snapshotPath) names() []string {
	var names []string
	if p.path != "" {
		names = strings.Split(p.path, "/")
	}
	if p.snapshot == currentState {
		return names
	}
	return append([]string{snapshotsDir, p.snapshot}, names...)
}
