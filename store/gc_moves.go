package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/remote"
)

// moveGraph is what moves tell, and which multichunks are there.
type moveGraph struct {
	moves map[[16]byte]*move
	to    map[Name][]Name
	from  map[Name][]Name
	there map[Name]bool
}

func newMoveGraph(known map[[16]byte]*move, there map[Name]bool) *moveGraph {
	g := &moveGraph{moves: known, to: map[Name][]Name{}, from: map[Name][]Name{}, there: there}
	for _, m := range known {
		for _, f := range m.from {
			g.to[f] = append(g.to[f], m.to)
			g.from[m.to] = append(g.from[m.to], f)
		}
	}
	return g
}

// reach returns n and all that steps lead to from it.
func reach(n Name, steps map[Name][]Name) []Name {
	all, seen := []Name{n}, map[Name]bool{n: true}
	for i := 0; i < len(all); i++ {
		for _, next := range steps[all[i]] {
			if !seen[next] {
				seen[next] = true
				all = append(all, next)
			}
		}
	}
	return all
}

// united returns the moves that would tell at once what now takes several steps, or several moves: one for each multichunk that is there,
// where that makes at least worth others superfluous.
func (g *moveGraph) united(worth int) []*move {
	direct := map[Name]int{}
	for _, m := range g.moves {
		direct[m.to] = max(direct[m.to], len(m.from))
	}
	var fresh []*move
	for n := range g.from {
		if !g.there[n] {
			continue
		}
		from := reach(n, g.from)[1:]
		if len(from) > maxMoveFrom || len(from) == direct[n] {
			continue
		}
		tellers := 0
		for _, m := range g.moves {
			if m.to == n || slices.Contains(from, m.to) {
				tellers++
			}
		}
		if tellers > worth {
			slices.SortFunc(from, compareNames)
			fresh = append(fresh, &move{to: n, from: from})
		}
	}
	slices.SortFunc(fresh, func(a, b *move) int { return compareNames(a.to, b.to) })
	return fresh
}

// superfluous returns the moves that tell nothing: none of the multichunks that they lead from is there, and wherever they lead to that is
// there, another move that stays leads at once.
func (g *moveGraph) superfluous() [][16]byte {
	var dead [][16]byte
	for id, m := range g.moves {
		if slices.ContainsFunc(m.from, func(n Name) bool { return g.there[n] }) {
			continue
		}
		told := true
		for _, n := range reach(m.to, g.to) {
			told = told && (!g.there[n] || g.isTold(id, m, n))
		}
		if told {
			dead = append(dead, id)
		}
	}
	slices.SortFunc(dead, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	return dead
}

// isTold reports whether a move that is longer than m, which has the given id, leads from all that m does to n. Of two of one length one
// counts as longer.
func (g *moveGraph) isTold(id [16]byte, m *move, n Name) bool {
	for other, o := range g.moves {
		if o.to != n || len(o.from) < len(m.from) || len(o.from) == len(m.from) && bytes.Compare(other[:], id[:]) <= 0 {
			continue
		}
		if !slices.ContainsFunc(m.from, func(f Name) bool { _, ok := slices.BinarySearchFunc(o.from, f, compareNames); return !ok }) {
			return true
		}
	}
	return false
}

// listedMoves returns the moves that are listed.
func (r *Repository) listedMoves(ctx context.Context) (map[[16]byte]*move, error) {
	if _, err := r.ReadMoves(ctx); err != nil {
		return nil, err
	}
	known, listed := r.moves.all(), map[[16]byte]*move{}
	err := listObjects(ctx, r.st, movedDir, func(id [16]byte, _ remote.Entry) {
		if m := known[id]; m != nil {
			listed[id] = m
		}
	})
	if err != nil {
		return nil, err
	}
	return listed, nil
}

// deleteMoves deletes moves that tell nothing, as all could see when c looked, and unites others so that more can go the next time.
func (c *Collector) deleteMoves(ctx context.Context, v *victims, d *Deletion) error {
	if len(v.s.moves) == 0 {
		return nil
	}
	there := map[Name]bool{}
	err := c.r.eachMultichunk(ctx, func(n Name, _ int64) error {
		there[n] = true
		return nil
	})
	if err != nil {
		return err
	}
	g := newMoveGraph(v.s.moves, there)
	if c.o.rules.forgetsMoves {
		g.there = map[Name]bool{}
	}
	dead := g.superfluous()
	for _, id := range dead {
		if err := c.r.st.Delete(ctx, moveName(id)); err != nil {
			return fmt.Errorf("delete %s: %w", moveName(id), err)
		}
		c.r.moves.drop(id)
		d.Moves++
	}
	if _, err := c.r.ReadMoves(ctx); err != nil {
		return err
	}
	for _, m := range newMoveGraph(c.r.moves.all(), there).united(c.o.worthUniting) {
		if err := c.r.putInFull(ctx, func() error { return c.r.putMove(ctx, m) }); err != nil {
			return fmt.Errorf("unite moves: %w", err)
		}
		d.Told = true
	}
	return nil
}
