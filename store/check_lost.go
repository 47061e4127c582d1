package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// errLost is what is wrong with an object that is not there and should be.
var errLost = fmt.Errorf("the object is gone: %w", ErrNotFound)

// checkOpened sees that what the repository was opened with is there: the repository object, a keyring, and the slots that it lists.
func (c *checker) checkOpened(ctx context.Context) error {
	r := c.r
	if r.identity == nil {
		return nil
	}
	r.keyMu.Lock()
	_, roster, err := r.objects.unite(r.identity)
	var rings []string
	for id := range r.objects.keyrings {
		rings = append(rings, objectName(keyringDir, id))
	}
	r.keyMu.Unlock()
	if err != nil {
		return nil // the keys that are known come from keyrings that are there
	}
	expected := []string{objectName(repositoryDir, seal.ID(r.cfg.Repository))}
	for _, s := range roster.Slots {
		if !slices.Contains(roster.Removed, s.ID) {
			expected = append(expected, objectName(keysDir, s.ID))
		}
	}
	if !slices.ContainsFunc(rings, func(name string) bool { return slices.Contains(c.keyrings, name) }) {
		expected = append(expected, rings...)
	}
	for _, name := range expected {
		if err := c.checkThere(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// checkThere notes that the object name is lost, unless it is there. Its name decides: listings may be behind.
func (c *checker) checkThere(ctx context.Context, name string) error {
	_, err := c.r.st.Get(ctx, name, 0, -1)
	if errors.Is(err, remote.ErrNotExist) {
		c.lost(name)
		return nil
	}
	return err
}

// lost notes that an object is gone, unless that is known.
func (c *checker) lost(name string) {
	c.mu.Lock()
	known := slices.ContainsFunc(c.report.Damages, func(d Damage) bool { return d.Object == name })
	c.mu.Unlock()
	if !known {
		c.damaged(name, errLost)
	}
}

// checkLost looks for objects of which this machine has copies, which are not there, and which nobody may have deleted.
func (c *checker) checkLost(ctx context.Context) error {
	for _, name := range c.copies {
		if !strings.HasPrefix(name, pastDir+"/") && c.mustBeThere(name) {
			if err := c.checkThere(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPast is checkLost of lists of the past. What they said holds even so: all else is judged by it.
func (c *checker) checkPast(ctx context.Context) error {
	if _, err := c.r.ReadPast(ctx); err != nil && !aboutObject(err) {
		return err
	}
	known := map[pastID]*pastList{}
	for _, name := range c.copies {
		id, ok := parseID(strings.TrimPrefix(name, pastDir+"/"))
		if !ok {
			continue
		}
		if l, err := c.r.openPast(name, c.copyOf(name)); err == nil {
			known[id] = l
		}
		if c.mustBeThere(name) {
			if err := c.checkThere(ctx, name); err != nil {
				return err
			}
		}
	}
	for id, l := range known {
		c.r.past.add(id, l)
	}
	return nil
}

// mustBeThere reports whether an object of which there is a copy is not listed, and garbage collection has not deleted it.
func (c *checker) mustBeThere(name string) bool {
	dir, rest, _ := strings.Cut(name, "/")
	switch dir {
	case commitsDir:
		return c.mustHaveCommit(name, strings.Split(rest, "/"))
	case clientsDir:
		client, last, _ := strings.Cut(rest, "/")
		owner, _ := parseID(client)
		incarnation, _, _ := parsePair(last)
		return !slices.Contains(c.registrations, name) && !c.r.past.get(incarnation).ended && c.commits[chain{owner, incarnation}] != nil
	case settingsDir:
		return !slices.Contains(c.settings, name)
	case pastDir:
		l, err := c.r.openPast(name, c.copyOf(name))
		return err == nil && !slices.Contains(c.past, name) && !c.r.past.has(l)
	case movedDir:
		m, err := c.r.openMove(name, c.copyOf(name))
		return err == nil && !slices.Contains(c.moves, name) && c.isUntold(m)
	case noticesDir:
		n, err := c.r.openNotice(name, c.copyOf(name))
		return err == nil && !slices.Contains(c.notices, name) && len(n.Evicted) > 0
	}
	return false
}

// mustHaveCommit is mustBeThere of a commit; parts are those of its name behind the directory of all.
func (c *checker) mustHaveCommit(name string, parts []string) bool {
	if len(parts) != 4 {
		return false
	}
	client, _ := parseID(parts[0])
	incarnation, _ := parseID(parts[1])
	seq, _, _ := parseCommitName(parts[3])
	ch := chain{client, incarnation}
	far := c.r.past.get(incarnation)
	if slices.Contains(c.commits[ch][seq], name) || far.ended || seq < far.seq {
		return false
	}
	last, evicted := c.survey.evicted[ch]
	return !evicted || seq <= last.Seq
}

// isUntold reports whether m leads to something that is there, from somewhere that no move leads from.
func (c *checker) isUntold(m *move) bool {
	if _, there := c.sizes[m.to]; !there {
		return false
	}
	return slices.ContainsFunc(m.from, func(n Name) bool { return len(c.r.MovedTo(n)) == 0 })
}

// nameOfCommit returns the name that begins with prefix of a commit of which there is a copy, or prefix if there is none.
func (c *checker) nameOfCommit(prefix string) string {
	i, _ := slices.BinarySearch(c.copies, prefix)
	if i < len(c.copies) && strings.HasPrefix(c.copies[i], prefix) {
		return c.copies[i]
	}
	return prefix
}
