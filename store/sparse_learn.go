package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"golang.org/x/sync/errgroup"
)

// A HookLoader brings the hooks of all multichunks that commits announce into an Index: from hook lists as far as these reach, from the
// commits themselves where they do not, which it reads once. It writes lists of what has not been listed, and merges them. It is
// not safe for concurrent use.
type HookLoader struct {
	r *Repository
	x *Index
	o HookLoaderOptions

	listed map[chain]seqSpans       // by lists; nil until they have been read
	lists  map[hookListID]*hookList // without their hooks; none that another contains
	sizes  map[hookListID]int64     // of all that were there when they were listed

	mu      sync.Mutex // guards what follows
	fetched int64
}

// HookLoaderOptions are options of NewHookLoader.
type HookLoaderOptions struct {
	Client    ClientID        // who loads; it writes lists of its own commits sooner than of others'
	ReadOnly  bool            // write no lists
	Room      func() error    // called before the index is written to; an error ends the loading. Default: nothing
	Condemned func(Name) bool // says what lists need not have any more. Default: nothing
}

// NewHookLoader returns a loader that has read nothing.
func (r *Repository) NewHookLoader(x *Index, o HookLoaderOptions) *HookLoader {
	if o.Room == nil {
		o.Room = func() error { return nil }
	}
	if o.Condemned == nil {
		o.Condemned = func(Name) bool { return false }
	}
	o.ReadOnly = o.ReadOnly || r.ReadOnly() != nil
	return &HookLoader{r: r, x: x, o: o}
}

const (
	listOwn      = 32   // commits of its own that a client lists together
	listAll      = 128  // commits of all clients that it lists if nobody else has
	mergeLists   = 8    // lists of about one size that are merged into one
	walkWindow   = 1024 // commits that are read before what they announce is put into the index
	hookParallel = 16

	listsHeld = 8 << 20 // bytes of lists that are in memory together, unless a single one is longer
)

// Load makes the index know what the commits up to heads announce. What cannot be read for good is passed over, and reported in
// an error that wraps *ObjectError; everything else is there nevertheless.
func (l *HookLoader) Load(ctx context.Context, heads []Head) error {
	if err := l.x.Load(ctx); err != nil {
		return err
	}
	damage, err := l.load(ctx, heads)
	if err != nil {
		return fmt.Errorf("load hooks: %w", err)
	}
	return errors.Join(damage...)
}

func (l *HookLoader) load(ctx context.Context, heads []Head) (damage []error, err error) {
	if l.listed == nil {
		behind, err := l.behind(heads)
		if err != nil {
			return nil, err
		}
		if behind > 0 {
			if damage, err = l.readLists(ctx); err != nil {
				return nil, err
			}
		}
	}
	due, err := l.due(ctx, heads)
	if err != nil {
		return nil, err
	}
	walks, err := l.walks(heads, due)
	if err != nil {
		return nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(hookParallel)
	for _, w := range walks {
		group.Go(func() error { return w.run(groupCtx) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	list := &hookList{covers: map[chain]seqSpans{}}
	for _, w := range walks {
		damage = append(damage, w.damage...)
		if w.gather {
			list.covers[w.head.chain()] = w.covered
			list.multichunks = append(list.multichunks, w.gathered...)
		}
	}
	return damage, l.publish(ctx, list)
}

// due returns the chains whose commits are to be listed: this client's own when they are some, all when they are many and nobody
// else has listed them.
func (l *HookLoader) due(ctx context.Context, heads []Head) (due map[chain]bool, err error) {
	if l.o.ReadOnly || l.listed == nil {
		return nil, nil
	}
	own, all := l.unlisted(heads)
	if all >= listAll {
		if _, err := l.readLists(ctx); err != nil {
			return nil, err
		}
		own, all = l.unlisted(heads)
	}
	due = map[chain]bool{}
	for _, h := range heads {
		due[h.chain()] = all >= listAll || own >= listOwn && h.Client == l.o.Client
	}
	return due, nil
}

// unlisted returns how many commits stand in no list, of this client in all its incarnations, and of all clients.
func (l *HookLoader) unlisted(heads []Head) (own, all Seq) {
	for _, h := range heads {
		n := l.listed[h.chain()].missing(h.Seq).len()
		all += n
		if h.Client == l.o.Client {
			own += n
		}
	}
	return own, all
}

// walks returns what has to be read of the commits themselves.
func (l *HookLoader) walks(heads []Head, due map[chain]bool) (walks []*hookWalk, err error) {
	for _, h := range heads {
		learned, err := l.x.learned(h.chain())
		if err != nil {
			return nil, err
		}
		w := &hookWalk{l: l, head: h, wanted: learned.missing(h.Seq), gather: due[h.chain()]}
		if w.gather {
			w.wanted = w.wanted.union(l.listed[h.chain()].missing(h.Seq))
		}
		if len(w.wanted) > 0 {
			walks = append(walks, w)
		}
	}
	return walks, nil
}

// behind returns how many commits the index has not learned yet.
func (l *HookLoader) behind(heads []Head) (n Seq, err error) {
	for _, h := range heads {
		spans, err := l.x.learned(h.chain())
		if err != nil {
			return 0, err
		}
		n += spans.missing(h.Seq).len()
	}
	return n, nil
}

// readLists puts what hook lists say that have not been read before into the index, the longest lists first: they contain others.
// It returns the damage of lists apart.
func (l *HookLoader) readLists(ctx context.Context) (damage []error, err error) {
	sizes, err := l.r.listHookLists(ctx)
	if err != nil {
		return nil, err
	}
	l.listed, l.lists, l.sizes = map[chain]seqSpans{}, map[hookListID]*hookList{}, sizes
	contained := map[hookListID]bool{}
	left := make([]hookListID, 0, len(sizes))
	for id := range sizes {
		list, err := l.x.list(id)
		if err != nil {
			return nil, err
		}
		if list == nil {
			left = append(left, id)
			continue
		}
		list.size = sizes[id]
		l.note(list)
		for _, other := range list.contains {
			contained[other] = true
		}
	}
	slices.SortFunc(left, func(a, b hookListID) int {
		if sizes[a] != sizes[b] {
			return int(sizes[b] - sizes[a])
		}
		return bytes.Compare(a[:], b[:])
	})
	if err := l.x.Expect(ctx, hooksIn(left, sizes)); err != nil {
		return nil, err
	}
	for len(left) > 0 {
		n, held := 1, sizes[left[0]]
		for n < len(left) && sizes[left[n]] > sizes[left[0]]/4 && held+sizes[left[n]] <= listsHeld {
			held += sizes[left[n]]
			n++
		}
		wave := slices.DeleteFunc(slices.Clone(left[:n]), func(id hookListID) bool { return contained[id] })
		left = left[n:]
		lists, bad, err := l.fetchLists(ctx, wave)
		if err != nil {
			return nil, err
		}
		damage = append(damage, bad...)
		for _, list := range lists {
			for _, id := range list.contains {
				contained[id] = true
			}
		}
		if err := l.addLists(ctx, lists); err != nil {
			return nil, err
		}
	}
	for id := range contained {
		delete(l.lists, id)
	}
	return damage, nil
}

// hooksIn returns how many hooks full lists have, about. What is not full may be contained in them.
func hooksIn(ids []hookListID, sizes map[hookListID]int64) (n uint64) {
	for _, id := range ids {
		if sizes[id] >= fullHookList {
			n += uint64(sizes[id]) / uint64(len(Hook{}))
		}
	}
	return n
}

// fetchLists fetches hook lists. Those that are gone are left out, and what is wrong with others is returned apart.
func (l *HookLoader) fetchLists(ctx context.Context, ids []hookListID) (lists []*hookList, damage []error, err error) {
	lists, damage = make([]*hookList, len(ids)), make([]error, len(ids))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(hookParallel)
	for i, id := range ids {
		group.Go(func() error {
			list, err := l.r.getHookList(groupCtx, id)
			switch {
			case errors.Is(err, remote.ErrNotExist):
				return nil
			case aboutObject(err):
				damage[i] = err
				return nil
			case err != nil:
				return err
			}
			lists[i] = list
			l.add(list.size)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	lists = slices.DeleteFunc(lists, func(list *hookList) bool { return list == nil })
	return lists, slices.DeleteFunc(damage, func(err error) bool { return err == nil }), nil
}

// addLists puts what lists say into the index, and keeps them without their hooks.
func (l *HookLoader) addLists(ctx context.Context, lists []*hookList) error {
	for _, list := range lists {
		if err := l.o.Room(); err != nil {
			return err
		}
		if err := l.x.AddHooks(ctx, list.multichunks); err != nil {
			return err
		}
		for c, spans := range list.covers {
			if err := l.x.setLearned(c, spans); err != nil {
				return err
			}
		}
		l.note(list)
		if err := l.x.setList(list); err != nil {
			return err
		}
	}
	return nil
}

// note remembers a list, but not its hooks.
func (l *HookLoader) note(list *hookList) {
	for c, spans := range list.covers {
		l.listed[c] = l.listed[c].union(spans)
	}
	list.multichunks = nil
	l.lists[list.id], l.sizes[list.id] = list, list.size
}

func (l *HookLoader) add(fetched int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fetched += fetched
}

// Fetched returns how many bytes of hook lists have been read, and of commits about as many as they would take in one.
func (l *HookLoader) Fetched() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fetched
}

// publish puts a list, and merges what has become enough to be merged.
func (l *HookLoader) publish(ctx context.Context, list *hookList) error {
	if len(list.covers) == 0 {
		return nil
	}
	if err := l.put(ctx, list); err != nil {
		return err
	}
	for {
		ids := l.mergeable()
		if ids == nil {
			return nil
		}
		if err := l.merge(ctx, ids); err != nil {
			return err
		}
	}
}

// mergeable returns lists of about one size that are enough to be merged, nil if there are none: the shortest first, and no more
// than may be in memory together.
func (l *HookLoader) mergeable() []hookListID {
	tiers := map[int][]hookListID{}
	for id, list := range l.lists {
		if list.size >= fullHookList {
			continue
		}
		tier := 0
		for size := int64(8 << 10); size < list.size; size *= 4 {
			tier++
		}
		tiers[tier] = append(tiers[tier], id)
	}
	for _, ids := range tiers {
		if len(ids) >= mergeLists {
			return l.shortest(ids)
		}
	}
	return nil
}

// shortest returns as many of the lists, the shortest first, as may be in memory together, and at least two.
func (l *HookLoader) shortest(ids []hookListID) []hookListID {
	slices.SortFunc(ids, func(a, b hookListID) int { return cmp.Compare(l.lists[a].size, l.lists[b].size) })
	n, held := 0, int64(0)
	for n < len(ids) && (n < 2 || held+l.lists[ids[n]].size <= listsHeld) {
		held += l.lists[ids[n]].size
		n++
	}
	return ids[:n]
}

// merge puts one list in the place of others. Somebody else may do the same: then there are two, and the next merge makes one.
func (l *HookLoader) merge(ctx context.Context, ids []hookListID) error {
	lists, _, err := l.fetchLists(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		delete(l.lists, id) // also what is gone or damaged
	}
	if len(lists) < 2 {
		return nil
	}
	there := func(id hookListID) bool { _, ok := l.sizes[id]; return ok }
	merged := mergeHookLists(lists, l.o.Condemned, there)
	maps.DeleteFunc(merged.covers, func(c chain, _ seqSpans) bool { return l.r.past.get(c.incarnation).ended })
	return l.put(ctx, merged)
}

// put publishes a list, all of which is in the index.
func (l *HookLoader) put(ctx context.Context, list *hookList) error {
	if err := l.r.putHookList(ctx, list); err != nil {
		return err
	}
	l.note(list)
	return l.x.setList(list)
}

// hookWalk reads the wanted commits of one chain, the newest first.
type hookWalk struct {
	l      *HookLoader
	head   Head
	wanted seqSpans
	gather bool // keep what has been read, to list it

	covered  seqSpans
	gathered []HookedMultichunk

	mu     sync.Mutex // guards what follows
	found  []HookedMultichunk
	damage []error // about objects
}

// run goes through the wanted commits in windows, so that what is in memory is bounded.
func (w *hookWalk) run(ctx context.Context) error {
	entry := []Head{w.head}
	for i := len(w.wanted) - 1; i >= 0; i-- {
		for span := w.wanted[i]; ; {
			low := span.from
			if span.to-span.from >= walkWindow {
				low = span.to - walkWindow + 1
			}
			var err error
			entry, err = w.window(ctx, entry, seqSpan{low, span.to})
			if errors.Is(err, remote.ErrNotExist) {
				w.damage = append(w.damage, &ObjectError{w.l.r.commitName(w.head), err})
				return nil
			}
			if err != nil {
				return err
			}
			if low == span.from {
				break
			}
			span.to = low - 1
		}
	}
	return nil
}

// window reads the commits of a span. It gets there from entry, whose commits are newer or in it, by links; all links that
// lead beyond it are returned.
func (w *hookWalk) window(ctx context.Context, entry []Head, span seqSpan) (beyond []Head, err error) {
	w.found = nil
	asked := map[Head]bool{}
	for frontier := entry; len(frontier) > 0; {
		links, err := w.fetch(ctx, frontier, span)
		if err != nil {
			return nil, err
		}
		frontier = nil
		for _, h := range links {
			switch {
			case asked[h]:
			case h.Seq < span.from:
				beyond = append(beyond, h)
			default:
				frontier = append(frontier, h)
			}
			asked[h] = true
		}
	}
	if err := w.l.o.Room(); err != nil {
		return nil, err
	}
	if err := w.l.x.AddHooks(ctx, w.found); err != nil {
		return nil, err
	}
	done := seqSpans{span}
	if err := w.l.x.setLearned(w.head.chain(), done); err != nil {
		return nil, err
	}
	if w.gather {
		w.gathered = append(w.gathered, w.found...)
		w.covered = w.covered.union(done)
	}
	return beyond, nil
}

// fetch reads commits and returns where they link to: of those that are newer than span, the last links that do not lead past it.
func (w *hookWalk) fetch(ctx context.Context, heads []Head, span seqSpan) (links []Head, err error) {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(hookParallel)
	for _, h := range heads {
		if h.Seq < span.from {
			links = append(links, h)
			continue
		}
		group.Go(func() error {
			c, err := w.l.r.GetCommit(groupCtx, h)
			w.mu.Lock()
			defer w.mu.Unlock()
			switch {
			case errors.Is(err, remote.ErrNotExist) && (h != w.head || w.l.r.HasPassed(h)):
				return nil // an old one that has been deleted, and lists have what it announced
			case aboutObject(err):
				w.damage = append(w.damage, err)
				return nil
			case err != nil:
				return err
			}
			if h.Seq <= span.to {
				found := c.hooked()
				w.found = append(w.found, found...)
				for i := range found {
					w.l.add(int64(len(Name{}) + len(ID{})*len(found[i].Hooks)))
				}
			}
			links = append(links, w.next(c, span)...)
			return nil
		})
	}
	return links, group.Wait()
}

// next returns the links of c to follow.
func (w *hookWalk) next(c *Commit, span seqSpan) (links []Head) {
	for _, link := range c.links() {
		h := Head{c.Client, c.Incarnation, link.Seq, link.Hash}
		if c.Seq <= span.to {
			links = append(links, h)
			continue
		}
		// Still above it: the longest ways that do not lead past its end, and one into it, in case commits are gone.
		links = append(links, h)
		if link.Seq < span.to {
			break
		}
	}
	if c.Seq > span.to && len(links) > 3 {
		links = links[len(links)-3:]
	}
	return links
}
