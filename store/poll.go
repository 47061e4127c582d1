package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"golang.org/x/sync/errgroup"
)

// Poll looks for new commits of all clients, verifies them back to what t has accepted, and accepts them. It returns
// the newest good head of every incarnation, in the order of client and incarnation, also when it returns an error as
// well. Such an error joins
//
//   - *RollbackError and *ForkError, both ErrRollback: the remote shows a history otherwise than before. Nothing new of
//     that incarnation is accepted, and the head returned for it is what the remote shows, good for reading.
//     AcceptRollback and AcceptFork end it.
//   - *ObjectError: an object is damaged (ErrCorrupt), missing (ErrNotFound) or too new (ErrFormat). What else is there
//     was used.
//
// Any other error is the remote's; then no heads are returned, and t is as it was. A client finds its own
// incarnations among the heads: one that is ahead of what it has published means that its local state was copied or
// restored.
func (r *Repository) Poll(ctx context.Context, t *Trust) ([]Head, error) {
	if err := r.ReloadKeys(ctx); err != nil && !errors.Is(err, errKeep) {
		return nil, err // or what is sealed under newer keys would be damage
	}
	chains, err := r.listChains(ctx)
	if err != nil {
		return nil, err
	}
	for c := range t.heads {
		chains[c] = true
	}
	return r.poll(ctx, t, chains, r.listAll)
}

// PollKnown is Poll for the incarnations that t knows. It asks for one listing of each, and more only if it has begun
// another group.
func (r *Repository) PollKnown(ctx context.Context, t *Trust) ([]Head, error) {
	chains := make(map[chain]bool)
	for c := range t.heads {
		chains[c] = true
	}
	return r.poll(ctx, t, chains, r.listOnward)
}

// listed is what a listing shows of a chain: the names of the commits of each number. There is more than one if the
// chain was forked, or somebody plays tricks.
type listed map[Seq][]string

// A lister lists the commits of c from the group of number from, zero if no commit is known.
type lister func(ctx context.Context, c chain, from Seq) (listed, error)

func (r *Repository) poll(ctx context.Context, t *Trust, chains map[chain]bool, list lister) ([]Head, error) {
	p := &poll{r: r, trust: t, before: make(map[chain]Head), result: make(map[chain]*verdict)}
	for c := range chains {
		if r.past.get(c.incarnation).ended { // the listing is behind, or t
			delete(chains, c)
			continue
		}
		p.before[c] = t.heads[c]
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for c := range chains {
		if t.ended[c] { // a client has one of these for each of its mounts, and nothing new comes there
			p.set(c, &verdict{head: p.before[c]})
			continue
		}
		group.Go(func() error {
			listed, err := list(groupCtx, c, p.before[c].Seq)
			if err != nil {
				return err
			}
			return p.judge(groupCtx, c, listed)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := p.crossCheck(ctx); err != nil {
		return nil, err
	}
	return p.conclude()
}

// listChains lists the incarnations of all clients that have published anything.
func (r *Repository) listChains(ctx context.Context) (map[chain]bool, error) {
	var clients []ClientID
	if _, err := listIDs(ctx, r.st, commitsDir, true, func(id [16]byte, _ remote.Entry) { clients = append(clients, id) }); err != nil {
		return nil, fmt.Errorf("list commits: %w", err)
	}
	chains := make(map[chain]bool)
	var mu sync.Mutex // guards chains
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, client := range clients {
		group.Go(func() error {
			dir := commitsDir + "/" + client.String()
			_, err := listIDs(ctx, r.st, dir, true, func(id [16]byte, _ remote.Entry) {
				mu.Lock()
				defer mu.Unlock()
				chains[chain{client, id}] = true
			})
			if err != nil {
				return fmt.Errorf("list %s: %w", dir, err)
			}
			return nil
		})
	}
	return chains, group.Wait()
}

// listAll lists every group of c from that of from on. If from is zero it lists the last two that hold anything: the
// one commit of a group that has just begun may be half-written.
func (r *Repository) listAll(ctx context.Context, c chain, from Seq) (listed, error) {
	groups, err := r.listGroups(ctx, c)
	if err != nil {
		return nil, err
	}
	all, full := make(listed), 0
	for _, g := range groups {
		if g < from.group() || from == 0 && full == 2 {
			break
		}
		before := len(all)
		if err := r.listGroup(ctx, c, g, all); err != nil {
			return nil, err
		}
		if len(all) > before {
			full++
		}
	}
	return all, nil
}

// listOnward lists the group of from, and the next as long as the last of a group is there.
func (r *Repository) listOnward(ctx context.Context, c chain, from Seq) (listed, error) {
	all := make(listed)
	for g := from.group(); ; g++ {
		if err := r.listGroup(ctx, c, g, all); err != nil {
			return nil, err
		}
		last := Seq(g+1)<<groupBits - 1
		if _, ok := all[last]; !ok && from != last {
			return all, nil
		}
	}
}

// listGroups lists the groups of c, the newest first.
func (r *Repository) listGroups(ctx context.Context, c chain) ([]seqGroup, error) {
	var groups []seqGroup
	err := r.st.List(ctx, chainDir(c), func(e remote.Entry) error {
		if g, ok := parseNumber(e.Name, 14); ok && e.Dir {
			groups = append(groups, seqGroup(g))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", chainDir(c), err)
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	slices.Reverse(groups)
	return groups, nil
}

// listGroup adds the commits in group g of c to all.
func (r *Repository) listGroup(ctx context.Context, c chain, g seqGroup, all listed) error {
	dir := groupDir(c, g)
	err := r.st.List(ctx, dir, func(e remote.Entry) error {
		seq, _, ok := parseCommitName(e.Name)
		name := dir + "/" + e.Name
		if ok && !e.Dir && e.Size <= maxCommitWire && seq.group() == g && !slices.Contains(all[seq], name) {
			all[seq] = append(all[seq], name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	return nil
}

// A poll is one run of Poll.
type poll struct {
	r      *Repository
	trust  *Trust         // read until conclude
	before map[chain]Head // what was accepted before

	readPast sync.Once
	pastErr  error // of reading it

	mu     sync.Mutex // guards result
	result map[chain]*verdict
}

// A verdict is what became of one chain.
type verdict struct {
	head    Head    // to return; zero is none
	commit  *Commit // that head names, if it is newly accepted
	expect  Head    // another client has seen it, and it is gone
	passed  bool    // it has ended, and is gone
	history []error // RollbackError and ForkError
	damage  []error // ObjectError
}

// note adds what is wrong with an object, once.
func (v *verdict) note(err error) {
	for _, e := range v.damage {
		if e.Error() == err.Error() {
			return
		}
	}
	v.damage = append(v.damage, err)
}

func (p *poll) set(c chain, v *verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result[c] = v
}

// maxCandidates bounds how many commits of one chain are opened in a poll to find a good one.
const maxCandidates = 64

// judge decides what to accept of a chain from what is listed of it. It returns errors of the remote only.
func (p *poll) judge(ctx context.Context, c chain, l listed) error {
	v := &verdict{head: p.before[c]}
	defer p.set(c, v)
	if err := p.findForks(ctx, c, l, v); err != nil {
		return err
	}
	if err := p.findHead(ctx, c, l, v); err != nil {
		return err
	}
	if v.commit != nil || p.before[c].IsZero() || len(v.history) > 0 {
		return nil
	}
	return p.findAccepted(ctx, c, l, v)
}

// findForks opens the commits that share a number.
func (p *poll) findForks(ctx context.Context, c chain, l listed, v *verdict) error {
	var first Seq
	for _, seq := range sortedDown(l) {
		if len(l[seq]) < 2 || p.trust.forkAccepted(c, seq) {
			continue
		}
		commits, err := p.open(ctx, l[seq], v)
		if err != nil {
			return err
		}
		if len(commits) > 1 {
			first = seq
		}
	}
	if first == 0 {
		return nil
	}
	fork, err := p.findTips(ctx, first, l, v)
	v.history = append(v.history, fork)
	return err
}

// findTips returns the fork at number first with the newest commits of its two branches.
func (p *poll) findTips(ctx context.Context, first Seq, l listed, v *verdict) (*ForkError, error) {
	fork := &ForkError{Seq: first}
	var tip *Commit
	for _, seq := range sortedDown(l) {
		commits, err := p.open(ctx, l[seq], v)
		if err != nil {
			return fork, err
		}
		for _, c := range commits {
			if tip == nil {
				tip, fork.A = c, c.Head()
				continue
			}
			found, err := p.r.ancestor(ctx, tip, c.Seq)
			if err != nil && !aboutObject(err) && !errors.Is(err, ErrNotFound) {
				return fork, err
			}
			if found != c.hash {
				fork.B = c.Head()
				return fork, nil
			}
		}
	}
	return fork, nil
}

// findHead looks for the newest commit that descends from what was accepted.
func (p *poll) findHead(ctx context.Context, c chain, l listed, v *verdict) error {
	accepted := p.before[c]
	tried := 0
	for _, seq := range sortedDown(l) {
		if seq <= accepted.Seq || tried >= maxCandidates {
			return nil
		}
		tried += len(l[seq])
		commits, err := p.open(ctx, l[seq], v)
		if err != nil {
			return err
		}
		for _, commit := range commits {
			ok, err := p.descends(ctx, commit, accepted, v)
			if err != nil {
				return err
			}
			if ok {
				v.head, v.commit = commit.Head(), commit
				return nil
			}
		}
	}
	return nil
}

// open opens the commits with the given names. Those that do not open are reported, those that are gone are left out;
// the others come in the order of their hashes, so that all clients prefer the same.
func (p *poll) open(ctx context.Context, names []string, v *verdict) ([]*Commit, error) {
	var commits []*Commit
	for _, name := range names[:min(len(names), maxCandidates)] {
		c, err := p.r.fetchCommit(ctx, name)
		switch {
		case err == nil:
			commits = append(commits, c)
		case aboutObject(err):
			v.note(err)
		case !errors.Is(err, remote.ErrNotExist): // else the listing was behind
			return nil, err
		}
	}
	slices.SortFunc(commits, func(a, b *Commit) int { return slices.Compare(a.hash[:], b.hash[:]) })
	return commits, nil
}

// descends reports whether accepted is an ancestor of c, or nothing was accepted yet. If another commit has the
// ancestor's number it notes a fork.
func (p *poll) descends(ctx context.Context, c *Commit, accepted Head, v *verdict) (bool, error) {
	if accepted.IsZero() {
		return true, nil
	}
	found, err := p.r.ancestor(ctx, c, accepted.Seq)
	if err != nil && (aboutObject(err) || errors.Is(err, ErrNotFound)) {
		far, perr := p.passage(ctx, accepted)
		if perr != nil {
			return false, perr
		}
		if accepted.Seq < far.seq && far.seq <= c.Seq { // what lay between is past, and c is signed
			return true, nil
		}
	}
	switch {
	case aboutObject(err) || errors.Is(err, ErrNotFound):
		v.note(err)
		return false, nil
	case err != nil:
		return false, err
	case found == accepted.Hash:
		return true, nil
	}
	if !p.trust.forkAccepted(c.chain(), accepted.Seq) && len(v.history) == 0 {
		v.history = append(v.history, &ForkError{Seq: accepted.Seq, A: accepted, B: c.Head()})
	}
	return false, nil
}

// ancestor returns the hash of the commit number seq that c descends from. It goes by the longest links that do not
// lead past it, and by shorter ones where a commit is gone.
func (r *Repository) ancestor(ctx context.Context, c *Commit, seq Seq) (CommitHash, error) {
	for c.Seq > seq {
		links := c.links()
		for _, l := range links {
			if l.Seq == seq {
				return l.Hash, nil
			}
		}
		var err error
		if c, err = r.towards(ctx, c, links, seq); err != nil {
			return CommitHash{}, err
		}
	}
	return c.hash, nil
}

// towards returns the oldest commit newer than seq that links of c lead to.
func (r *Repository) towards(ctx context.Context, c *Commit, links []SkipLink, seq Seq) (*Commit, error) {
	err := error(&ObjectError{r.commitName(c.Head()), corruptf("commit %d has no link towards %d", c.Seq, seq)})
	for _, l := range slices.Backward(links) {
		if l.Seq < seq {
			continue
		}
		h := Head{c.Client, c.Incarnation, l.Seq, l.Hash}
		var next *Commit
		if next, err = r.GetCommit(ctx, h); err == nil {
			return next, nil
		}
		if errors.Is(err, remote.ErrNotExist) {
			err = &ObjectError{r.commitName(h), ErrNotFound}
		} else if !aboutObject(err) {
			return nil, err
		}
	}
	return nil, err
}

// findAccepted makes sure that the accepted head of a chain, of which nothing newer was found, is still there.
func (p *poll) findAccepted(ctx context.Context, c chain, l listed, v *verdict) error {
	accepted := p.before[c]
	name := p.r.commitName(accepted)
	if slices.Contains(l[accepted.Seq], name) {
		return p.findOther(ctx, accepted, l, v)
	}
	_, err := p.r.getTwice(ctx, accepted)
	switch {
	case err == nil:
		return p.findOther(ctx, accepted, l, v)
	case aboutObject(err):
		v.note(err)
		return nil
	case !errors.Is(err, remote.ErrNotExist):
		return err
	}
	far, err := p.passage(ctx, accepted)
	if err != nil {
		return err
	}
	if v.passed = far.ended; v.passed {
		v.head = Head{}
		return nil
	}
	if len(l) == 0 {
		if l, err = p.r.listAll(ctx, c, 0); err != nil {
			return err
		}
	}
	offered, err := p.newestListed(ctx, l, v)
	if err != nil {
		return err
	}
	if offered.Seq == accepted.Seq && !p.trust.forkAccepted(c, offered.Seq) {
		v.history = append(v.history, &ForkError{Seq: accepted.Seq, A: accepted, B: offered})
	} else {
		v.history = append(v.history, &RollbackError{Accepted: accepted, Offered: offered})
	}
	v.head = offered
	return nil
}

// passage returns how far the history of h has passed. It reads the past, once, if that is not known to have begun.
func (p *poll) passage(ctx context.Context, h Head) (passage, error) {
	if far := p.r.past.get(h.Incarnation); far.ended {
		return far, nil
	}
	p.readPast.Do(func() {
		if _, err := p.r.ReadPast(ctx); err != nil && !aboutObject(err) {
			p.pastErr = err
		}
	})
	return p.r.past.get(h.Incarnation), p.pastErr
}

// findOther looks for a commit with the accepted head's number and another hash, where the head itself is not listed.
func (p *poll) findOther(ctx context.Context, accepted Head, l listed, v *verdict) error {
	names := l[accepted.Seq]
	if len(names) != 1 || names[0] == p.r.commitName(accepted) || p.trust.forkAccepted(accepted.chain(), accepted.Seq) {
		return nil
	}
	commits, err := p.open(ctx, names, v)
	if err == nil && len(commits) > 0 {
		v.history = append(v.history, &ForkError{Seq: accepted.Seq, A: accepted, B: commits[0].Head()})
	}
	return err
}

// newestListed returns the newest commit listed that opens.
func (p *poll) newestListed(ctx context.Context, l listed, v *verdict) (Head, error) {
	seqs := sortedDown(l)
	for _, seq := range seqs[:min(len(seqs), maxCandidates)] {
		commits, err := p.open(ctx, l[seq], v)
		if err != nil {
			return Head{}, err
		}
		if len(commits) > 0 {
			return commits[0].Head(), nil
		}
	}
	return Head{}, nil
}

// getTwice is GetCommit past what memory holds. It asks again, after a moment, for what is not found.
func (r *Repository) getTwice(ctx context.Context, h Head) (*Commit, error) {
	c, err := r.fetchCommit(ctx, r.commitName(h))
	if !errors.Is(err, remote.ErrNotExist) {
		return c, err
	}
	select {
	case <-time.After(r.askAgain):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return r.fetchCommit(ctx, r.commitName(h))
}

// crossCheck fetches what newly accepted commits have seen of other chains and the listings did not show.
func (p *poll) crossCheck(ctx context.Context) error {
	var queue []*Commit
	for _, v := range p.result {
		if v.commit != nil {
			queue = append(queue, v.commit)
		}
	}
	for len(queue) > 0 {
		by := queue[0]
		queue = queue[1:]
		for _, seen := range by.Seen {
			found, err := p.checkSeen(ctx, seen, by.Head())
			if err != nil {
				return err
			}
			if found != nil {
				queue = append(queue, found)
			}
		}
	}
	return nil
}

// checkSeen returns the commit seen if it is newer than what is known of its chain, and accepts it.
func (p *poll) checkSeen(ctx context.Context, seen, by Head) (*Commit, error) {
	if p.r.HasPassed(seen) {
		return nil, nil
	}
	v := p.result[seen.chain()]
	if v == nil {
		v = &verdict{head: p.before[seen.chain()]}
		p.result[seen.chain()] = v
	}
	newest := v.head
	if before := p.trust.heads[seen.chain()]; before.Seq > newest.Seq {
		newest = before // it was rolled back, which is reported already
	}
	if seen.IsZero() || seen.Seq < newest.Seq || seen == newest || p.trust.lossAccepted(seen) || len(v.history) > 0 {
		return nil, nil
	}
	if seen.Seq == newest.Seq {
		v.history = append(v.history, &ForkError{Seq: seen.Seq, A: newest, B: seen})
		return nil, nil
	}
	c, err := p.r.getTwice(ctx, seen)
	switch {
	case errors.Is(err, remote.ErrNotExist):
		if far, err := p.passage(ctx, seen); err != nil || far.ended {
			return nil, err
		}
		v.history = append(v.history, &RollbackError{Accepted: seen, Offered: v.head, SeenBy: by})
		v.expect = seen
		return nil, nil
	case aboutObject(err):
		v.note(err)
		return nil, nil
	case err != nil:
		return nil, err
	case c.Head() != seen:
		v.note(&ObjectError{p.r.commitName(seen), corruptf("another commit lies there")})
		return nil, nil
	}
	ok, err := p.descends(ctx, c, v.head, v)
	if err != nil || !ok {
		return nil, err
	}
	v.head, v.commit = seen, c
	return c, nil
}

// conclude accepts what was found and returns the heads.
func (p *poll) conclude() ([]Head, error) {
	var heads []Head
	var errs []error
	for c := range p.trust.heads {
		if p.r.past.get(c.incarnation).ended {
			p.trust.forget(c)
		}
	}
	for c, v := range p.result {
		if v.passed || p.r.past.get(c.incarnation).ended {
			continue
		}
		if v.commit != nil && len(v.history) == 0 {
			p.trust.Accept(v.head)
			if v.commit.Retired {
				p.trust.end(v.commit.chain())
			}
		}
		if !v.expect.IsZero() {
			// From now on this client expects it as if it had seen it itself, so that the next poll reports it again.
			p.trust.Accept(v.expect)
		}
		if !v.head.IsZero() {
			heads = append(heads, v.head)
		}
		errs = append(errs, v.history...)
		errs = append(errs, v.damage...)
	}
	slices.SortFunc(heads, compareHeads)
	return heads, errors.Join(errs...)
}

func sortedDown(l listed) []Seq {
	seqs := make([]Seq, 0, len(l))
	for seq := range l {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	slices.Reverse(seqs)
	return seqs
}
