package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// pastDir is the directory of all lists of the past.
const pastDir = "past"

// A pastID names a list of the past. It is random.
type pastID [16]byte

func pastName(id pastID) string { return pastDir + "/" + hex.EncodeToString(id[:]) }

// A passage says how far the history of an incarnation has passed.
type passage struct {
	seq    Seq    // the commits before it may be gone
	ended  bool   // it may be gone too, and none comes after it
	inodes uint32 // of one that has ended: the range of inode numbers, which nobody may have again
}

// after returns the later of two passages of one incarnation.
func (p passage) after(o passage) passage {
	if o.ended && !p.ended || o.ended == p.ended && o.seq > p.seq {
		p, o = o, p
	}
	p.inodes = max(p.inodes, o.inodes)
	return p
}

// A pastList says which commits may be gone, so that nobody takes their absence for a roll-back. Whatever it names, all who count
// went by before it was put.
type pastList struct {
	contains []pastID // lists of which this one has everything
	of       map[Incarnation]passage
}

// Bounds of a list of the past.
const (
	maxPastWire = 64 << 20 // bytes; what is longer is none of ours
	passageSize = 16 + 1 + 8 + 4
)

func appendPast(dst []byte, l *pastList) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(l.contains)))
	for _, id := range l.contains {
		dst = append(dst, id[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.of)))
	for _, i := range slices.SortedFunc(maps.Keys(l.of), compareIncarnations) {
		p := l.of[i]
		dst = append(dst, i[:]...)
		dst = appendBool(dst, p.ended)
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.seq))
		dst = binary.BigEndian.AppendUint32(dst, p.inodes)
	}
	return dst
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// bool reads what appendBool has written.
func (d *decoder) bool() bool {
	b := d.byte()
	if b > 1 {
		d.fail()
	}
	return b == 1
}

// parsePast is the inverse of appendPast.
func parsePast(b []byte) (*pastList, error) {
	d := decoder{b: b}
	l := &pastList{of: map[Incarnation]passage{}}
	for range d.count(len(pastID{})) {
		l.contains = append(l.contains, d.bytes16())
	}
	for range d.count(passageSize) {
		i := Incarnation(d.bytes16())
		l.of[i] = passage{ended: d.bool(), seq: Seq(d.uint64()), inodes: d.uint32()}
	}
	if d.bad {
		return nil, corruptf("list of the past")
	}
	return l, nil
}

func compareIncarnations(a, b Incarnation) int { return bytes.Compare(a[:], b[:]) }

// past is what is known of all lists of the past. It is never forgotten.
type past struct {
	mu       sync.Mutex // guards what follows
	contains map[pastID][]pastID
	of       map[Incarnation]passage
	inodes   map[uint32]bool
}

func (p *past) add(id pastID, l *pastList) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.contains, p.of, p.inodes = map[pastID][]pastID{}, map[Incarnation]passage{}, map[uint32]bool{}
	}
	p.contains[id] = l.contains
	for i, o := range l.of {
		p.of[i] = p.of[i].after(o)
		if o.inodes != 0 {
			p.inodes[o.inodes] = true
		}
	}
}

func (p *past) knows(id pastID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.contains[id]
	return ok
}

// has reports whether all that l says is known.
func (p *past) has(l *pastList) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range l.of {
		if p.of[i].after(o) != p.of[i] {
			return false
		}
	}
	return true
}

func (p *past) get(i Incarnation) passage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[i]
}

func (p *past) hasRange(n uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inodes[n]
}

// HasPassed reports whether h is of an incarnation that has ended, and of which ReadPast has found that all its commits may be gone. It is
// as if it had never been: whoever counts has all that it published.
func (r *Repository) HasPassed(h Head) bool { return r.past.get(h.Incarnation).ended }

// ReadPast makes known which commits may be gone, as far as that is not known yet, and reports whether there was anything new. A
// list that is damaged is passed over, and reported as an *ObjectError when all others have been read.
func (r *Repository) ReadPast(ctx context.Context) (news bool, err error) {
	listed, err := r.listPast(ctx)
	if err != nil {
		return false, err
	}
	var (
		mu      sync.Mutex // guards news and damaged
		damaged []error
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, id := range listed {
		if r.past.knows(id) {
			continue
		}
		group.Go(func() error {
			l, _, err := getSealed(ctx, r, pastName(id), r.openPast)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, remote.ErrNotExist): // another has everything, and is listed
			case aboutObject(err):
				damaged = append(damaged, err)
			case err != nil:
				return err
			default:
				r.past.add(id, l)
				news = true
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return false, err
	}
	return news, errors.Join(damaged...)
}

// listPast returns the ids of all lists of the past.
func (r *Repository) listPast(ctx context.Context) (ids []pastID, err error) {
	err = listObjects(ctx, r.st, pastDir, func(id [16]byte, e remote.Entry) {
		if e.Size <= maxPastWire {
			ids = append(ids, id)
		}
	})
	return ids, err
}

func (r *Repository) openPast(name string, wire []byte) (*pastList, error) {
	return openSealed(r.keys, seal.KindPast, name, wire, parsePast)
}

// putPast publishes all that is known of the past, and what is new.
func (r *Repository) putPast(ctx context.Context, fresh map[Incarnation]passage) error {
	l := &pastList{of: map[Incarnation]passage{}}
	r.past.mu.Lock()
	for id := range r.past.contains {
		l.contains = append(l.contains, id)
	}
	maps.Copy(l.of, r.past.of)
	r.past.mu.Unlock()
	slices.SortFunc(l.contains, func(a, b pastID) int { return bytes.Compare(a[:], b[:]) })
	for i, p := range fresh {
		l.of[i] = l.of[i].after(p)
	}
	var id pastID
	rand.Read(id[:])
	if _, err := r.putSealed(ctx, seal.KindPast, pastName(id), appendPast(nil, l)); err != nil {
		return err
	}
	r.past.add(id, l)
	return nil
}

// seenPast is what a survey has seen of the past: whatever it names has been there for everybody to see when the survey has settled.
type seenPast struct {
	of   map[Incarnation]passage
	idle []pastID // lists of which another one that was listed has everything
}

// lookAtPast reads the past as it is now. It returns what it has seen also if some of it is damaged.
func (r *Repository) lookAtPast(ctx context.Context) (*seenPast, error) {
	_, damage := r.ReadPast(ctx)
	if damage != nil && !aboutObject(damage) {
		return nil, damage
	}
	listed, err := r.listPast(ctx)
	if err != nil {
		return nil, err
	}
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	seen := &seenPast{of: maps.Clone(r.past.of)}
	contained := map[pastID]bool{}
	for _, id := range listed {
		for _, other := range r.past.contains[id] {
			contained[other] = true
		}
	}
	for _, id := range listed {
		if contained[id] {
			seen.idle = append(seen.idle, id)
		}
	}
	return seen, damage
}
