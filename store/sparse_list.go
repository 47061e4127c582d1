package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// hooksDir is the directory of all hook lists.
const hooksDir = "hooks"

// A hookListID names a hook list. It is random.
type hookListID [16]byte

func (id hookListID) String() string { return hex.EncodeToString(id[:]) }

func hookListName(id hookListID) string { return hooksDir + "/" + id.String() }

// A hookList repeats what commits announce, so that a new client need not read them all. Lists are merged into longer ones by
// any client; what a list contains need not be read any more. A list is a hint like all that it says.
type hookList struct {
	id          hookListID
	size        int64 // on the wire
	covers      map[chain]seqSpans
	contains    []hookListID // lists of which this one has everything
	multichunks []HookedMultichunk
}

// Bounds of a hook list.
const (
	maxHookListWire = 64 << 20 // bytes; what is longer is none of ours
	fullHookList    = 4 << 20  // bytes; what is longer is not merged any more
	maxListed       = 1 << 22  // multichunks in a list
)

// A seqSpan is the commits numbered from up to and with to.
type seqSpan struct{ from, to Seq }

// seqSpans are spans in order that do not touch.
type seqSpans []seqSpan

// union returns the commits that are in s or in t.
func (s seqSpans) union(t seqSpans) seqSpans {
	all := slices.Concat(s, t)
	slices.SortFunc(all, func(a, b seqSpan) int { return cmp.Compare(a.from, b.from) })
	var u seqSpans
	for _, next := range all {
		if n := len(u); n > 0 && next.from <= u[n-1].to+1 {
			u[n-1].to = max(u[n-1].to, next.to)
			continue
		}
		u = append(u, next)
	}
	return u
}

// missing returns the commits up to and with head that are not in s.
func (s seqSpans) missing(head Seq) seqSpans {
	var gaps seqSpans
	at := Seq(1)
	for _, span := range s {
		if span.from > at && at <= head {
			gaps = append(gaps, seqSpan{at, min(span.from-1, head)})
		}
		at = max(at, span.to+1)
	}
	if at <= head {
		gaps = append(gaps, seqSpan{at, head})
	}
	return gaps
}

func (s seqSpans) has(seq Seq) bool {
	return slices.ContainsFunc(s, func(span seqSpan) bool { return span.from <= seq && seq <= span.to })
}

// len returns how many commits s has.
func (s seqSpans) len() (n Seq) {
	for _, span := range s {
		n += span.to - span.from + 1
	}
	return n
}

func appendSpans(dst []byte, s seqSpans) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	for _, span := range s {
		dst = binary.BigEndian.AppendUint64(dst, uint64(span.from))
		dst = binary.BigEndian.AppendUint64(dst, uint64(span.to))
	}
	return dst
}

func (d *decoder) spans() (s seqSpans) {
	for range d.count(16) {
		span := seqSpan{Seq(d.uint64()), Seq(d.uint64())}
		if span.from == 0 || span.to < span.from || len(s) > 0 && span.from <= s[len(s)-1].to {
			d.fail()
		}
		s = append(s, span)
	}
	return s
}

func appendHookList(dst []byte, l *hookList) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(l.covers)))
	for _, c := range sortedChains(l.covers) {
		dst = append(dst, c.client[:]...)
		dst = append(dst, c.incarnation[:]...)
		dst = appendSpans(dst, l.covers[c])
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.contains)))
	for _, id := range l.contains {
		dst = append(dst, id[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.multichunks)))
	for i := range l.multichunks {
		dst = append(dst, l.multichunks[i].Name[:]...)
	}
	for i := range l.multichunks {
		dst = binary.AppendUvarint(dst, uint64(len(l.multichunks[i].Hooks)))
	}
	for i := range l.multichunks {
		for _, h := range l.multichunks[i].Hooks {
			dst = append(dst, h[:]...)
		}
	}
	return dst
}

func sortedChains(m map[chain]seqSpans) []chain {
	var chains []chain
	for c := range m {
		chains = append(chains, c)
	}
	slices.SortFunc(chains, compareChains)
	return chains
}

// parseHookList is the inverse of appendHookList. The id is not in the bytes: it is the object's name.
func parseHookList(b []byte) (*hookList, error) {
	d := decoder{b: b}
	l := &hookList{covers: map[chain]seqSpans{}}
	for range d.count(16 + 16 + 1) {
		c := chain{d.bytes16(), d.bytes16()}
		l.covers[c] = d.spans()
	}
	for range d.count(len(hookListID{})) {
		l.contains = append(l.contains, d.bytes16())
	}
	n := d.count(len(Name{}) + 1)
	if n > maxListed {
		d.fail()
		n = 0
	}
	l.multichunks = make([]HookedMultichunk, n)
	for i := range l.multichunks {
		l.multichunks[i].Name = d.bytes16()
	}
	counts, sum := d.column(n, len(b))
	if d.bad || sum > len(d.b)/len(Hook{}) {
		return nil, corruptf("list of hooks")
	}
	hooks := make([]Hook, sum) // one array for all
	for i := range hooks {
		hooks[i] = Hook(d.bytes(len(Hook{})))
	}
	each := lengths{column: counts}
	for i := range l.multichunks {
		k := each.next()
		l.multichunks[i].Hooks, hooks = hooks[:k:k], hooks[k:]
	}
	return l, nil
}

// listHookLists returns the ids and sizes of all hook lists.
func (r *Repository) listHookLists(ctx context.Context) (map[hookListID]int64, error) {
	sizes := map[hookListID]int64{}
	err := listObjects(ctx, r.st, hooksDir, func(id [16]byte, e remote.Entry) {
		if e.Size >= seal.MinWire && e.Size <= maxHookListWire {
			sizes[id] = e.Size
		}
	})
	if err != nil {
		return nil, err
	}
	return sizes, nil
}

func (r *Repository) getHookList(ctx context.Context, id hookListID) (*hookList, error) {
	l, size, err := getSealed(ctx, r, hookListName(id), r.openHookList)
	if err != nil {
		return nil, err
	}
	l.id, l.size = id, int64(size)
	return l, nil
}

func (r *Repository) openHookList(name string, wire []byte) (*hookList, error) {
	return openSealed(r.keys, seal.KindHooks, name, wire, parseHookList)
}

// putHookList publishes l under a new id.
func (r *Repository) putHookList(ctx context.Context, l *hookList) error {
	rand.Read(l.id[:])
	size, err := r.putSealed(ctx, seal.KindHooks, hookListName(l.id), appendHookList(nil, l))
	l.size = int64(size)
	return err
}

// mergeHookLists returns one list that has all that the given ones have, but for multichunks that are condemned. Of the lists
// contained in them it remembers those that are still there.
func mergeHookLists(lists []*hookList, condemned func(Name) bool, there func(hookListID) bool) *hookList {
	merged := &hookList{covers: map[chain]seqSpans{}}
	seen := map[Name]bool{}
	for _, l := range lists {
		for c, spans := range l.covers {
			merged.covers[c] = merged.covers[c].union(spans)
		}
		merged.contains = append(merged.contains, l.id)
		for _, id := range l.contains {
			if there(id) {
				merged.contains = append(merged.contains, id)
			}
		}
		for _, m := range l.multichunks {
			if !condemned(m.Name) && !seen[m.Name] {
				seen[m.Name] = true
				merged.multichunks = append(merged.multichunks, m)
			}
		}
	}
	slices.SortFunc(merged.contains, func(a, b hookListID) int { return bytes.Compare(a[:], b[:]) })
	merged.contains = slices.Compact(merged.contains)
	return merged
}

// DeleteContainedHooks deletes the hook lists of which a longer one has everything. It needs the right to delete and can be
// done at any time, by anyone: who has listed one that is gone reads the longer one, or the commits. It returns how many went.
func (r *Repository) DeleteContainedHooks(ctx context.Context) (deleted int, err error) {
	sizes, err := r.listHookLists(ctx)
	if err != nil {
		return 0, err
	}
	contained := map[hookListID]bool{}
	for id := range sizes {
		l, err := r.getHookList(ctx, id)
		switch {
		case aboutObject(err), errors.Is(err, remote.ErrNotExist):
			continue
		case err != nil:
			return 0, err
		}
		for _, other := range l.contains {
			contained[other] = true
		}
	}
	for id := range contained {
		if _, there := sizes[id]; !there {
			continue
		}
		if err := r.st.Delete(ctx, hookListName(id)); err != nil && !errors.Is(err, remote.ErrNotExist) {
			return deleted, fmt.Errorf("delete %s: %w", hookListName(id), err)
		}
		deleted++
	}
	return deleted, nil
}
