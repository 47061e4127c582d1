package fs

import (
	"context"
	"encoding/binary"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// A file that has lost its last name, or has not got one yet, keeps its records for as long as somebody uses it: what is
// written to it is cut and stored as in all files, and a name that it gets later names everything. An orphan record per inode
// tells which those are. They go with the first commit after the last use; after a crash, with the first commit of the next
// mount.

// orphan stages that ino has no name, and changes its attributes accordingly.
func (t *tx) orphan(ino Ino, n *attrs) {
	n.Nlink = 0
	t.put(&store.Entry{Key: []byte(orphanKey(ino)), Value: t.v.me[:]})
}

// adoptOrphan stages that a file without a name gets one. Only one that is open can: its records may be about to go.
func (t *tx) adoptOrphan(ino Ino, n *attrs) error {
	in := t.v.table[ino]
	switch {
	case in != nil && in.cutOff:
		return syscall.ESTALE
	case n.Nlink > 0:
		return nil
	case in == nil:
		return syscall.ENOENT
	}
	t.del(orphanKey(ino))
	t.after = append(t.after, func() { in.orphan = false })
	return nil
}

// dropRecords stages that all records of ino go.
func (t *tx) dropRecords(ino Ino) error {
	t.del(inodeKey(ino))
	err := t.scan(t.ctx, string(key(ino, keyInode+1, 0)), prefixEnd(ino, keyTarget), func(k string, _ *store.Entry) bool {
		t.del(k)
		return true
	})
	t.del(orphanKey(ino))
	return err
}

// dropBatch is how many inodes lose their records in one transaction.
const dropBatch = 128

// dropUnused removes the records of inodes without names that nobody uses any more.
func (v *Volume) dropUnused(ctx context.Context) error {
	if err := v.findOrphans(ctx); err != nil {
		return err
	}
	for {
		v.mu.RLock()
		batch := v.unused[:min(len(v.unused), dropBatch)]
		v.mu.RUnlock()
		if len(batch) == 0 {
			return nil
		}
		err := v.retryUpdate(ctx, func(t *tx) error {
			for _, ino := range batch {
				if err := t.dropRecords(ino); err != nil {
					return err
				}
			}
			t.after = append(t.after, func() { v.unused = v.unused[len(batch):] })
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// findOrphans looks once for files without names that were in use when this client last ended: nobody uses them any more.
func (v *Volume) findOrphans(ctx context.Context) error {
	if v.orphansFound {
		return nil
	}
	var found []Ino
	err := v.view(ctx, func(r *layered) error {
		found = nil
		return r.scan(ctx, string(key(0, keyOrphan, 0)), prefixEnd(0, keyOrphan), func(k string, e *store.Entry) bool {
			if _, _, rest, _ := splitKey(k); len(rest) == 8 && string(e.Value) == string(v.me[:]) {
				found = append(found, Ino(binary.BigEndian.Uint64([]byte(rest))))
			}
			return true
		})
	})
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, ino := range found {
		v.settleFound(ino)
	}
	v.orphansFound = true
	return nil
}

// settleFound lets a file without a name go, unless it is in use in this mount.
func (v *Volume) settleFound(ino Ino) {
	in := v.table[ino]
	if in == nil {
		v.unused = append(v.unused, ino)
		return
	}
	in.mu.Lock()
	in.orphan = true // one that was brought back from the log does not know
	in.mu.Unlock()
	v.settle(in)
}
