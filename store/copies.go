package store

import (
	"context"
	"strings"
)

// A copy of a small object, as it lies on the remote, can be put again when that is lost or damaged. Whoever reads or writes such
// objects keeps some: commits and registrations, which nobody can make anew, and what is put by garbage collection. Lists of hooks can be made
// anew, and what a repository is opened with is in ExportState.

// maxCopy is how long an object is at most of which a copy is kept, in bytes.
const maxCopy = 64 << 10

// KeepCopies has keep called with every small object that r reads or puts, by many goroutines and also with what it has, until KeepCopies
// is called with nil. What is kept may be damaged: it is checked before it is used.
func (r *Repository) KeepCopies(keep func(name string, wire []byte)) {
	if keep == nil {
		r.copies.Store(nil)
		return
	}
	r.copies.Store(&keep)
	for id, wire := range r.read {
		r.keepCopy(objectName(settingsDir, id), wire)
	}
}

func (r *Repository) keepCopy(name string, wire []byte) {
	if keep := r.copies.Load(); keep != nil && len(wire) <= maxCopy && !strings.HasPrefix(name, hooksDir+"/") {
		(*keep)(name, wire)
	}
}

// putCopied is putSmall of an object of which a copy is kept.
func (r *Repository) putCopied(ctx context.Context, name string, wire []byte) error {
	if err := putSmall(ctx, r.st, name, wire); err != nil {
		return err
	}
	r.keepCopy(name, wire)
	return nil
}
