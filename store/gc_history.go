package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dedupfs/dedupfs/remote"
)

// maxPassing bounds the incarnations in one notice.
const maxPassing = 1 << 16

// passing returns the histories of which nobody needs the beginning, or anything, beside those that notices or the past name already, and
// how many objects would go. An incarnation that has retired is not needed if its last commit has been seen by all who count, and by
// another commit that all have seen, so that no merge starts from it, now or later. Of others nothing is needed before what all have seen, and
// of those that were evicted nothing before the last commit that counts, though others have taken over later ones.
func (r *Repository) passing(ctx context.Context, s *survey) (all []Passing, objects int, err error) {
	settled := s.settled()
	bases, err := r.bases(ctx, settled)
	if err != nil {
		return nil, 0, err
	}
	isBase := map[chain]bool{}
	for _, b := range bases {
		isBase[b.chain()] = !s.rules.endsBases
	}
	told := map[Incarnation]Seq{}
	for i, p := range s.past.of {
		told[i] = p.seq
	}
	for _, n := range s.notices {
		for _, p := range n.Passing {
			told[p.Incarnation] = max(told[p.Incarnation], p.Seq)
		}
	}
	for c, head := range s.heads {
		_, evicted := s.evicted[c]
		p := Passing{Incarnation: c.incarnation, Seq: min(settled[c].Seq, head.Seq)}
		if s.rules.passesUnseen {
			p.Seq = head.Seq
		}
		gain := int(p.Seq) - int(max(told[c.incarnation], 1))
		if p.Ended = head.Retired && !evicted && settled[c] == head.Head() && !isBase[c]; p.Ended {
			gain += 2 // the last commit and the registration
		}
		if gain > 0 && len(all) < maxPassing {
			all = append(all, p)
			objects += gain
		}
	}
	slices.SortFunc(all, func(a, b Passing) int { return compareIncarnations(a.Incarnation, b.Incarnation) })
	return all, objects, nil
}

// isPast reports whether all that a notice says is passing was said to be past before s.
func (s *survey) isPast(n *Notice) bool {
	return !slices.ContainsFunc(n.Passing, func(p Passing) bool { return !s.past.of[p.Incarnation].has(p) })
}

// has reports whether p says as much as a notice.
func (p passage) has(n Passing) bool { return p.ended || !n.Ended && p.seq >= n.Seq }

// deleteHistories deletes commits that nobody can ask for any more, and registrations of incarnations that have ended: of what was said to
// be past when c looked, so that by now everybody can know. Then it says what can go the next time.
func (c *Collector) deleteHistories(ctx context.Context, v *victims, d *Deletion) error {
	s := v.s
	fresh := c.passed(v)
	if c.o.rules.pastUnsaid {
		maps.Copy(fresh, s.past.of)
		s.past.of = fresh
	}
	doomed, err := c.doomed(ctx, s)
	if err != nil {
		return err
	}
	if err := c.r.keepHooks(ctx, doomed, s.condemns); err != nil {
		return err
	}
	for _, h := range doomed {
		for _, name := range h.names { // the oldest first: what is left has no gaps
			if err := c.r.st.Delete(ctx, name); err != nil {
				return fmt.Errorf("delete %s: %w", name, err)
			}
			d.Commits++
		}
		if err := c.r.removeDirs(ctx, h.dirs...); err != nil {
			return err
		}
	}
	if err := c.deleteRegistrations(ctx, s); err != nil {
		return err
	}
	for _, id := range s.past.idle {
		if err := c.r.st.Delete(ctx, pastName(id)); err != nil {
			return fmt.Errorf("delete %s: %w", pastName(id), err)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := c.r.putInFull(ctx, func() error { return c.r.putPast(ctx, fresh) }); err != nil {
		return fmt.Errorf("publish what is past: %w", err)
	}
	d.Told = true
	return nil
}

// passed returns what everybody goes by, and what was not said to be past.
func (c *Collector) passed(v *victims) map[Incarnation]passage {
	fresh := map[Incarnation]passage{}
	due := v.of
	if c.o.rules.passesUnheard {
		due = nil
		for _, n := range v.s.notices {
			due = append(due, victim{notice: n})
		}
	}
	for _, victim := range due {
		for _, p := range victim.notice.Passing {
			if v.s.past.of[p.Incarnation].has(p) || c.r.past.get(p.Incarnation).has(p) {
				continue
			}
			f := passage{seq: p.Seq, ended: p.Ended}
			if p.Ended {
				f.inodes = v.s.rangeOf(p.Incarnation)
			}
			fresh[p.Incarnation] = fresh[p.Incarnation].after(f)
		}
	}
	return fresh
}

// rangeOf returns the range of inode numbers of an incarnation that has a registration, else 0.
func (s *survey) rangeOf(i Incarnation) uint32 {
	for c, g := range s.registered {
		if c.incarnation == i {
			return g.InodeRange
		}
	}
	return 0
}

// doomedCommits are commits of one chain that go, the oldest first, and then directories if they are empty.
type doomedCommits struct {
	chain chain
	ended bool
	to    Seq // with all before it
	names []string
	dirs  []string
}

// doomed lists the commits that go.
func (c *Collector) doomed(ctx context.Context, s *survey) ([]doomedCommits, error) {
	if len(s.past.of) == 0 {
		return nil, nil
	}
	chains, err := c.r.listChains(ctx)
	if err != nil {
		return nil, err
	}
	var all []doomedCommits
	for _, ch := range slices.SortedFunc(maps.Keys(chains), compareChains) {
		p, known := s.past.of[ch.incarnation]
		if !known {
			continue
		}
		h := doomedCommits{chain: ch, ended: p.ended, to: ^Seq(0)}
		if !p.ended {
			if p.seq <= 1 {
				continue
			}
			h.to = p.seq - 1
		}
		if err := c.r.listDoomed(ctx, &h); err != nil {
			return nil, err
		}
		if len(h.names)+len(h.dirs) > 0 {
			all = append(all, h)
		}
	}
	return all, nil
}

func (r *Repository) listDoomed(ctx context.Context, h *doomedCommits) error {
	groups, err := r.listGroups(ctx, h.chain)
	if err != nil {
		return err
	}
	for _, g := range slices.Backward(groups) {
		if g > h.to.group() {
			break
		}
		l := listed{}
		if err := r.listGroup(ctx, h.chain, g, l); err != nil {
			return err
		}
		left := false
		for _, seq := range slices.Backward(sortedDown(l)) {
			if seq > h.to {
				left = true
				continue
			}
			h.names = append(h.names, l[seq]...)
		}
		if !left {
			h.dirs = append(h.dirs, groupDir(h.chain, g))
		}
	}
	if h.ended {
		h.dirs = append(h.dirs, chainDir(h.chain))
	}
	return nil
}

// removeDirs removes directories that are empty, where there are any.
func (r *Repository) removeDirs(ctx context.Context, dirs ...string) error {
	remover, ok := r.st.(remote.DirRemover)
	if !ok {
		return nil
	}
	for _, dir := range dirs {
		if err := remover.RemoveDir(ctx, dir); err != nil {
			return fmt.Errorf("remove directory %s: %w", dir, err)
		}
	}
	return nil
}

// deleteRegistrations deletes the registrations of incarnations that are past. Who had that range of inode numbers stands in the past.
func (c *Collector) deleteRegistrations(ctx context.Context, s *survey) error {
	names, err := c.r.registrationNames(ctx)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, name := range names {
		i, _, ok := parsePair(name[strings.LastIndexByte(name, '/')+1:])
		if !ok || !s.past.of[i].ended {
			continue
		}
		if err := c.r.TakeBack(ctx, name); err != nil {
			return err
		}
		dirs[parent(name)] = true
		dirs[commitsDir+"/"+parent(name)[len(clientsDir)+1:]] = true
	}
	return c.r.removeDirs(ctx, slices.Sorted(maps.Keys(dirs))...)
}

// keepHooks sees to it that lists have the hooks that commits announce which are going to be deleted, and deletes lists of which others
// have everything.
func (r *Repository) keepHooks(ctx context.Context, doomed []doomedCommits, condemned func(Name) bool) error {
	if len(doomed) == 0 {
		return nil
	}
	lists, err := r.allHookLists(ctx)
	if err != nil {
		return err
	}
	covered := map[chain]seqSpans{}
	for _, l := range lists {
		for c, spans := range l.covers {
			covered[c] = covered[c].union(spans)
		}
	}
	fresh := &hookList{covers: map[chain]seqSpans{}}
	for _, h := range doomed {
		for _, name := range h.names {
			seq, _, _ := parseCommitName(name[strings.LastIndexByte(name, '/')+1:])
			if covered[h.chain].has(seq) {
				continue
			}
			commit, err := r.fetchCommit(ctx, name)
			if errors.Is(err, remote.ErrNotExist) || aboutObject(err) {
				continue
			}
			if err != nil {
				return err
			}
			for _, m := range commit.hooked() {
				if !condemned(m.Name) {
					fresh.multichunks = append(fresh.multichunks, m)
				}
			}
			if !h.ended { // of others nobody asks any more
				fresh.covers[h.chain] = fresh.covers[h.chain].union(seqSpans{{1, seq}})
			}
		}
	}
	if len(fresh.multichunks) > 0 {
		if err := r.putInFull(ctx, func() error { return r.putHookList(ctx, fresh) }); err != nil {
			return fmt.Errorf("list hooks: %w", err)
		}
	}
	if _, err := r.DeleteContainedHooks(ctx); err != nil {
		return err
	}
	return nil
}

// allHookLists reads all lists of hooks. One that is damaged is left out.
func (r *Repository) allHookLists(ctx context.Context) ([]*hookList, error) {
	sizes, err := r.listHookLists(ctx)
	if err != nil {
		return nil, err
	}
	var lists []*hookList
	for id := range sizes {
		l, err := r.getHookList(ctx, id)
		switch {
		case aboutObject(err), errors.Is(err, remote.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			lists = append(lists, l)
		}
	}
	return lists, nil
}
