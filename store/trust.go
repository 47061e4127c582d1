package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Trust is what a client has accepted: the newest head of every chain, and what else it was told to live with.
// Whoever keeps it on local disk notices when the remote shows less than before. The zero value has seen nothing. It
// is not safe for concurrent use.
type Trust struct {
	heads    map[chain]Head
	accepted []Exception
	ended    map[chain]bool // their accepted heads are the last there are: the incarnations have retired
}

// An Exception records that somebody has accepted a RollbackError or a ForkError.
type Exception struct {
	Fork bool // otherwise a rollback
	Lost Head // a rollback: the head that is gone; a fork: of the two branches the one that was given up
	Kept Head // what was accepted instead; zero is nothing
	From Seq  // of a fork: the first number that stands for two commits
}

// Head returns the newest accepted head of an incarnation, zero if there is none.
func (t *Trust) Head(c ClientID, i Incarnation) Head { return t.heads[chain{c, i}] }

// Heads returns the newest accepted head of every incarnation, in the order of client and incarnation.
func (t *Trust) Heads() []Head { return slices.SortedFunc(maps.Values(t.heads), compareHeads) }

// Seen returns what a commit of an incarnation shall list as Seen: the heads of all others.
func (t *Trust) Seen(c ClientID, i Incarnation) []Head {
	return slices.DeleteFunc(t.Heads(), func(h Head) bool { return h.chain() == chain{c, i} })
}

// Accept records h as the newest head of its incarnation. A client does so with what it has published.
func (t *Trust) Accept(h Head) {
	if t.heads == nil {
		t.heads = make(map[chain]Head)
	}
	t.heads[h.chain()] = h
}

// end notes that nothing comes after the accepted head of c.
func (t *Trust) end(c chain) {
	if t.ended == nil {
		t.ended = make(map[chain]bool)
	}
	t.ended[c] = true
}

// forget drops a chain that is past.
func (t *Trust) forget(c chain) {
	delete(t.heads, c)
	delete(t.ended, c)
}

// Exceptions returns what was accepted by AcceptRollback and AcceptFork.
func (t *Trust) Exceptions() []Exception { return slices.Clone(t.accepted) }

// AcceptRollback goes on from what the remote shows now. The client whose history was rolled back must publish under
// a new incarnation from then on.
func (t *Trust) AcceptRollback(e *RollbackError) {
	t.accepted = append(t.accepted, Exception{Lost: e.Accepted, Kept: e.Offered})
	delete(t.ended, e.Accepted.chain())
	if e.Offered.IsZero() {
		delete(t.heads, e.Accepted.chain())
		return
	}
	t.Accept(e.Offered)
}

// AcceptFork goes on from the longer of the two branches, and keeps silent about the other as far as it reaches now.
// The client that was forked must publish under a new incarnation from then on.
func (t *Trust) AcceptFork(e *ForkError) {
	kept, lost := e.A, e.B
	if lost.Seq > kept.Seq || lost.Seq == kept.Seq && bytes.Compare(lost.Hash[:], kept.Hash[:]) < 0 {
		kept, lost = lost, kept
	}
	t.accepted = append(t.accepted, Exception{Fork: true, Lost: lost, Kept: kept, From: e.Seq})
	delete(t.ended, kept.chain())
	t.Accept(kept)
}

// forkAccepted reports whether it is known that seq of a chain stands for two commits.
func (t *Trust) forkAccepted(c chain, seq Seq) bool {
	for _, e := range t.accepted {
		if e.Fork && e.Kept.chain() == c && e.From <= seq && seq <= max(e.Lost.Seq, e.Kept.Seq) {
			return true
		}
	}
	return false
}

// lossAccepted reports whether it is known that h is gone.
func (t *Trust) lossAccepted(h Head) bool {
	for _, e := range t.accepted {
		if e.Lost.chain() == h.chain() && e.Kept.Seq < h.Seq && h.Seq <= e.Lost.Seq || e.Fork && e.Lost == h {
			return true
		}
	}
	return false
}

func compareHeads(a, b Head) int {
	if c := bytes.Compare(a.Client[:], b.Client[:]); c != 0 {
		return c
	}
	return bytes.Compare(a.Incarnation[:], b.Incarnation[:])
}

// Version 1 has no list of ended chains.
const trustVersion = 2

// MarshalBinary encodes t for local disk.
func (t *Trust) MarshalBinary() ([]byte, error) {
	b := []byte{trustVersion}
	b = binary.AppendUvarint(b, uint64(len(t.heads)))
	for _, h := range t.Heads() {
		b = appendHead(b, h)
	}
	b = binary.AppendUvarint(b, uint64(len(t.accepted)))
	for _, e := range t.accepted {
		var fork byte
		if e.Fork {
			fork = 1
		}
		b = append(b, fork)
		b = appendHead(b, e.Lost)
		b = appendHead(b, e.Kept)
		b = binary.BigEndian.AppendUint64(b, uint64(e.From))
	}
	b = binary.AppendUvarint(b, uint64(len(t.ended)))
	for _, c := range slices.SortedFunc(maps.Keys(t.ended), compareChains) {
		b = append(append(b, c.client[:]...), c.incarnation[:]...)
	}
	return b, nil
}

// UnmarshalBinary is the inverse of MarshalBinary. What it returns on bad input wraps ErrCorrupt.
func (t *Trust) UnmarshalBinary(b []byte) error {
	d := decoder{b: b}
	v := d.byte()
	if v == 0 || v > trustVersion {
		return corruptf("accepted heads: version %d, want %d", v, trustVersion)
	}
	*t = Trust{}
	for range d.count(headSize) {
		t.Accept(d.head())
	}
	for range d.count(1 + 2*headSize + 8) {
		t.accepted = append(t.accepted, Exception{Fork: d.byte() == 1, Lost: d.head(), Kept: d.head(), From: Seq(d.uint64())})
	}
	if v > 1 {
		for range d.count(32) {
			t.end(chain{d.bytes16(), d.bytes16()})
		}
	}
	if d.bad || len(d.b) > 0 {
		return corruptf("accepted heads")
	}
	return nil
}

// A RollbackError says that a head which was accepted, or which another client has seen, is no longer on the remote.
type RollbackError struct {
	Accepted Head
	Offered  Head // the newest commit of the chain that the remote still shows, zero if none
	SeenBy   Head // the commit that has seen Accepted, zero if it was this client itself
}

func (e *RollbackError) Error() string {
	by := "this client"
	if !e.SeenBy.IsZero() {
		by = "client " + e.SeenBy.Client.short()
	}
	return fmt.Sprintf("the remote was rolled back: %s has seen commit %d of client %s, the remote shows %d",
		by, e.Accepted.Seq, e.Accepted.Client, e.Offered.Seq)
}

// Is makes the error an ErrRollback.
func (e *RollbackError) Is(target error) bool { return target == ErrRollback }

// A ForkError says that one incarnation has two histories: its local state was copied, or restored, and both went on.
type ForkError struct {
	Seq  Seq  // the first number that was found to stand for two commits
	A, B Head // of the two histories
}

func (e *ForkError) Error() string {
	return fmt.Sprintf("history of client %s forked: two commits have number %d (%s and %s)",
		e.A.Client, e.Seq, e.A.Hash.String()[:8], e.B.Hash.String()[:8])
}

// Is makes the error an ErrRollback.
func (e *ForkError) Is(target error) bool { return target == ErrRollback }
