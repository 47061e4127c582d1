package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// ballastDir is the directory of the ballast: random bytes that mean nothing, and a keyed hash of them. They keep room for what a garbage
// collection has to put before it may delete anything, on a storage that is full: it deletes them first, and puts them back last.
const ballastDir = "ballast"

// ballastSize is how much room is kept, in bytes. A notice of 512 multichunks, a registration and four answers fit, and that is enough: what
// they condemn makes room for the next ones. More would show in a small repository.
const ballastSize = 64 << 10

// ballast lists what there is, and its lengths.
func (r *Repository) ballast(ctx context.Context) (map[seal.ID]int64, error) {
	sizes := map[seal.ID]int64{}
	err := listObjects(ctx, r.st, ballastDir, func(id [16]byte, e remote.Entry) { sizes[id] = e.Size })
	return sizes, err
}

// HasBallast reports whether the ballast is there. If it is not, and the storage is full, what room there is belongs to a garbage
// collection: nobody else puts data.
func (r *Repository) HasBallast(ctx context.Context) (bool, error) {
	sizes, err := r.ballast(ctx)
	if err != nil {
		return false, err
	}
	for id := range sizes {
		// A listing may be behind.
		_, err := r.st.Get(ctx, objectName(ballastDir, id), ballastSize-1, 1)
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.Is(err, remote.ErrUnreachable), errors.Is(err, remote.ErrAuth):
			return false, fmt.Errorf("get %s: %w", objectName(ballastDir, id), err)
		}
	}
	return false, nil
}

// PutBallast puts the ballast if it is not there. What a put has left that broke off is deleted first.
func (r *Repository) PutBallast(ctx context.Context) error {
	if err := r.ReadOnly(); err != nil {
		return err
	}
	sizes, err := r.ballast(ctx)
	if err != nil {
		return err
	}
	for id, size := range sizes {
		if size >= ballastSize || size < 0 {
			return nil
		}
		if err := r.deleteBallast(ctx, id); err != nil {
			return err
		}
	}
	var id seal.ID
	rand.Read(id[:])
	wire := make([]byte, ballastSize)
	rand.Read(wire)
	sum := r.ballastSum(objectName(ballastDir, id), wire)
	copy(wire[len(wire)-len(sum):], sum[:])
	if err := r.st.Put(ctx, objectName(ballastDir, id), wire); err != nil {
		if errors.Is(err, remote.ErrNoSpace) {
			_ = r.deleteBallast(ctx, id) // a piece of it may be there, and takes the room that is left
		}
		return fmt.Errorf("put ballast: %w", err)
	}
	return nil
}

// ballastSum returns what stands at the end of the ballast of that name.
func (r *Repository) ballastSum(name string, wire []byte) ID {
	h := r.ballastKey.get()
	defer r.ballastKey.put(h)
	h.Write([]byte(name))
	h.Write(wire[:len(wire)-len(ID{})])
	h.Sum(h.out[:0])
	return h.out
}

// openBallast returns an error unless wire is the ballast of that name as it was put.
func (r *Repository) openBallast(name string, wire []byte) error {
	if len(wire) != ballastSize {
		return corruptf("ballast of %d bytes", len(wire))
	}
	if sum := r.ballastSum(name, wire); !bytes.Equal(sum[:], wire[len(wire)-len(sum):]) {
		return corruptf("ballast")
	}
	return nil
}

// DropBallast deletes the ballast, and reports whether there was any.
func (r *Repository) DropBallast(ctx context.Context) (dropped bool, err error) {
	if err := r.ReadOnly(); err != nil {
		return false, err
	}
	sizes, err := r.ballast(ctx)
	if err != nil {
		return false, err
	}
	for id := range sizes {
		if err := r.deleteBallast(ctx, id); err != nil {
			return false, err
		}
	}
	return len(sizes) > 0, nil
}

func (r *Repository) deleteBallast(ctx context.Context, id seal.ID) error {
	if err := r.st.Delete(ctx, objectName(ballastDir, id)); err != nil {
		return fmt.Errorf("delete %s: %w", objectName(ballastDir, id), err)
	}
	return nil
}

// putInFull calls put, which puts something that a garbage collection needs. If the storage is full the ballast makes room for it.
func (r *Repository) putInFull(ctx context.Context, put func() error) error {
	err := put()
	if !errors.Is(err, remote.ErrNoSpace) {
		return err
	}
	if dropped, dropErr := r.DropBallast(ctx); dropErr != nil || !dropped {
		return errors.Join(err, dropErr)
	}
	return put()
}
