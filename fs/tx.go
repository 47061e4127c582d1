package fs

import (
	"context"
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// Types of log records.
const (
	logChange = cache.FirstType + iota // edits of records and operations on contents, one transaction
	logWrite                           // bytes written to a file
	logChunk                           // bytes of a chunk that no file's content refers to yet
)

// tx stages one change of the volume. It runs under Volume.cutMu (shared) and Volume.mu, reads the state before the
// change, and holds the locks of the inodes in the table that it has looked at.
type tx struct {
	*layered
	ctx    context.Context
	v      *Volume
	now    Timespec
	edits  []change
	attrs_ []stagedAttrs
	ops    []contentOp
	locked []*inode
	after  []func() // run when the change is in memory, before the locks go
}

type stagedAttrs struct {
	ino Ino
	a   *attrs // nil: the inode goes
}

// contentOp is a change of a file's content that carries no bytes.
type contentOp struct {
	in       *inode
	truncate bool
	off, n   int64          // truncate: the new size is off
	src      *contentReader // the bytes are a copy of it, from at on; nil for a hole
	at       int64
}

// put stages a record, del its removal.
func (t *tx) put(e *store.Entry) { t.edits = append(t.edits, change{string(e.Key), e}) }
func (t *tx) del(k string)       { t.edits = append(t.edits, change{k, nil}) }

// lock takes in's lock for the rest of the transaction.
func (t *tx) lock(in *inode) {
	for _, l := range t.locked {
		if l == in {
			return
		}
	}
	in.mu.Lock()
	t.locked = append(t.locked, in)
}

func (t *tx) unlock() {
	for _, in := range t.locked {
		in.mu.Unlock()
	}
}

// attrs returns a copy of the attributes of ino as this transaction sees them.
func (t *tx) attrs(ino Ino) (*attrs, error) {
	for i := len(t.attrs_) - 1; i >= 0; i-- {
		if t.attrs_[i].ino == ino && t.attrs_[i].a != nil {
			a := *t.attrs_[i].a
			return &a, nil
		}
	}
	if in := t.v.table[ino]; in != nil {
		t.lock(in)
		a := in.attrs
		return &a, nil
	}
	return loadAttrs(t.ctx, t.layered, ino)
}

// setAttrs stages the attributes of ino.
func (t *tx) setAttrs(ino Ino, a *attrs) { t.attrs_ = append(t.attrs_, stagedAttrs{ino, a}) }

// dir returns the attributes of a directory that can get entries.
func (t *tx) dir(ino Ino) (*attrs, error) {
	a, err := t.attrs(ino)
	if err != nil {
		return nil, err
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return nil, syscall.ENOTDIR
	}
	if a.Nlink == 0 {
		return nil, syscall.ENOENT
	}
	return a, nil
}

// loadAttrs reads an inode record. The root directory is there even when it has none yet.
func loadAttrs(ctx context.Context, r records, ino Ino) (*attrs, error) {
	e, err := r.get(ctx, inodeKey(ino))
	if err != nil {
		return nil, err
	}
	if e == nil {
		if ino == Root {
			return &attrs{Mode: syscall.S_IFDIR | 0o755, Nlink: 2}, nil
		}
		return nil, syscall.ENOENT
	}
	a, err := parseAttrs(e.Value)
	if err != nil {
		return nil, fmt.Errorf("inode %d: %w", ino, err)
	}
	return a, nil
}

// commit logs what is staged and applies it. v.mu is held.
func (t *tx) commit() error {
	for _, s := range t.attrs_ {
		if s.a == nil {
			t.del(inodeKey(s.ino))
		} else if in := t.v.table[s.ino]; in == nil || !in.cutOff {
			t.put(&store.Entry{Key: []byte(inodeKey(s.ino)), Value: appendAttrs(nil, s.a)})
		}
	}
	if len(t.edits)+len(t.ops) > 0 {
		if _, _, err := t.v.log.Append(logChange, t.encode(), nil); err != nil {
			return fmt.Errorf("write to the log: %w", err)
		}
	}
	t.apply()
	for _, fn := range t.after {
		fn()
	}
	if len(t.edits)+len(t.ops) > 0 {
		t.v.changed()
	}
	if t.v.active.len() > t.v.opt.DirtyRecords {
		t.v.commits.hurry()
	}
	return nil
}

func (t *tx) apply() {
	for _, c := range t.edits {
		t.v.active.set(c.key, c.entry)
	}
	for _, s := range t.attrs_ {
		if in := t.v.table[s.ino]; in != nil && s.a != nil {
			in.attrs, in.logged, in.stale = *s.a, true, false
		}
	}
	for _, op := range t.ops {
		op.in.apply(op)
		t.v.markDirty(op.in)
	}
}

func (t *tx) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(len(t.edits)))
	for _, c := range t.edits {
		b = appendEdit(b, c.key, c.entry)
	}
	b = binary.AppendUvarint(b, uint64(len(t.ops)))
	for _, op := range t.ops {
		b = appendContentOp(b, op)
	}
	return b
}

// Kinds of contentOp in the log.
const (
	opHole = iota
	opTruncate
	opCopy
)

func appendContentOp(b []byte, op contentOp) []byte {
	b = binary.AppendUvarint(b, uint64(op.in.ino))
	kind := byte(opHole)
	switch {
	case op.truncate:
		kind = opTruncate
	case op.src != nil:
		kind = opCopy
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(op.off))
	b = binary.AppendUvarint(b, uint64(op.n))
	if kind == opCopy {
		b = binary.AppendUvarint(b, uint64(op.at))
		e := op.src.m.entry(op.in.ino)
		b = appendEdit(b, string(e.Key), e)
	}
	return b
}

func (v *Volume) parseContentOp(r *reader) (Ino, contentOp, error) {
	ino, kind := Ino(r.uvarint()), r.byte()
	op := contentOp{truncate: kind == opTruncate, off: int64(r.uvarint()), n: int64(r.uvarint())}
	if r.bad || kind > opCopy || op.off < 0 || op.n < 0 || op.off > maxSize-op.n {
		return 0, op, errLogRecord
	}
	if kind == opCopy {
		op.at = int64(r.uvarint())
		_, e, err := parseEdit(r)
		if err != nil {
			return 0, op, err
		}
		m, err := parseExtentMap(e)
		if err != nil {
			return 0, op, err
		}
		if m.Ref.IsZero() || op.n == 0 || op.at < 0 || op.at > m.Length-op.n {
			return 0, op, errLogRecord
		}
		op.src = v.contentReader(m)
	}
	return ino, op, nil
}
