package fs

import (
	"context"
	"fmt"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
)

// replay brings back what was answered after the last local commit. No tree is needed for it: the record of an inode
// stands in the log before the first write to it.
func (v *Volume) replay(ctx context.Context, from cache.Pos) error {
	err := v.log.Replay(from, func(rec cache.Pos, typ byte, body []byte, data cache.Pos, n int) error {
		var err error
		switch typ {
		case logChange:
			err = v.replayChange(ctx, body)
		case logWrite:
			err = v.replayWrite(ctx, body, data, int64(n))
		case logChunk:
			err = v.replayChunk(ctx, data, n)
		default:
			err = fmt.Errorf("type %d: %w", typ, errLogRecord)
		}
		if err != nil {
			return fmt.Errorf("log record at %d: %w", rec, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("replay the log: %w", err)
	}
	for _, in := range v.table {
		in.logged = false // the log that is written from now on is replayed from a later place
	}
	return nil
}

// replayChunk makes the place of a chunk known again: a record that follows may refer to it.
func (v *Volume) replayChunk(ctx context.Context, data cache.Pos, n int) error {
	b := make([]byte, n)
	if err := v.log.ReadAt(b, data); err != nil {
		return err
	}
	_, err := v.ca.AddChunk(ctx, v.repo.ChunkID(b), b, cache.Place{{Pos: data, Len: uint32(n)}})
	return err
}

func (v *Volume) replayChange(ctx context.Context, body []byte) error {
	r := reader{b: body}
	for n := r.uvarint(); n > 0; n-- {
		k, e, err := parseEdit(&r)
		if err != nil {
			return err
		}
		v.active.set(k, e)
		ino, kind, _, ok := splitKey(k)
		if !ok {
			return errLogRecord
		}
		if err := v.replayInode(ino, kind, e == nil, k); err != nil {
			return err
		}
	}
	for n := r.uvarint(); n > 0; n-- {
		ino, op, err := v.parseContentOp(&r)
		if err != nil {
			return err
		}
		in, err := v.replayed(ctx, ino)
		if err != nil {
			return err
		}
		if in == nil {
			continue
		}
		op.in = in
		in.layer(v.log)
		in.apply(op)
		v.markDirty(in)
	}
	if r.bad || len(r.b) != 0 {
		return errLogRecord
	}
	return nil
}

// replayInode keeps an inode in the table in step with its records.
func (v *Volume) replayInode(ino Ino, kind byte, gone bool, k string) error {
	in := v.table[ino]
	switch {
	case in == nil:
	case kind == keyInode && gone: // what was open then is closed now
		in.active.releaseAll()
		delete(v.table, ino)
		delete(v.dirty, in)
	case kind == keyInode:
		e, _ := v.active.get(k)
		a, err := parseAttrs(e.Value)
		if err != nil {
			return err
		}
		in.attrs, in.stale = *a, false
	case kind == keyContent:
		in.content = nil
	}
	return nil
}

// replayed returns the inode that a record changes; nil if it had no name when the record was written.
func (v *Volume) replayed(ctx context.Context, ino Ino) (*inode, error) {
	if in := v.table[ino]; in != nil {
		return in, nil
	}
	e, ok := v.active.get(inodeKey(ino))
	if !ok || e == nil {
		return nil, nil
	}
	a, err := parseAttrs(e.Value)
	if err != nil {
		return nil, err
	}
	in := &inode{ino: ino, attrs: *a}
	v.table[ino] = in
	return in, nil
}

func (v *Volume) replayWrite(ctx context.Context, body []byte, data cache.Pos, n int64) error {
	w, err := parseWrite(body)
	if err != nil {
		return err
	}
	in, err := v.replayed(ctx, w.ino)
	if err != nil || in == nil {
		return err
	}
	if in.attrs.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return errLogRecord
	}
	in.layer(v.log).put(extent{off: w.off, n: n, from: fromLog, pos: data})
	in.wrote(w, n, v.me)
	v.markDirty(in)
	return nil
}
