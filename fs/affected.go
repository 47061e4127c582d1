package fs

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// Affected calls fn for every file that needs a chunk or node that is lost, in the states that the newest commits name and in
// all snapshots: path is "current" or the snapshot's name, a colon, and the file's path. Of a lost node of the tree itself, whose
// records nobody can tell, path is the state alone. Other nodes that cannot be read are passed over.
func Affected(ctx context.Context, ca *cache.Cache, repo *store.Repository, lost func(store.ID) bool, fn func(path string, id store.ID)) error {
	load := func(ctx context.Context, ref store.Ref) (*store.Node, error) {
		n, err := ca.Node(ctx, ref)
		if err != nil {
			return nil, ctx.Err()
		}
		return n, nil
	}
	a := &affected{ca: ca, repo: repo, load: load, lost: lost, clean: map[store.ID]bool{}}
	states, err := a.states(ctx)
	if err != nil {
		return err
	}
	for _, s := range states {
		if err := a.state(ctx, s, fn); err != nil {
			return err
		}
	}
	return nil
}

// affected finds what is lost below the roots of several states, which share most of what they have.
type affected struct {
	ca    *cache.Cache
	repo  *store.Repository
	load  func(context.Context, store.Ref) (*store.Node, error) // returns nil for what is to be passed over
	lost  func(store.ID) bool
	clean map[store.ID]bool // nodes below which nothing is lost
}

// namedState is the root of a tree, and what people call it.
type namedState struct {
	name string
	root store.Ref
}

// states returns the states of the newest commits and their snapshots, as far as they can be read.
func (a *affected) states(ctx context.Context) ([]namedState, error) {
	var trust store.Trust
	heads, err := a.repo.Poll(ctx, &trust)
	if len(heads) == 0 && err != nil {
		return nil, err
	}
	var states []namedState
	seen := map[namedState]bool{}
	add := func(name string, root store.Ref) {
		key := namedState{name, store.Ref{ID: root.ID}}
		if !root.IsZero() && !seen[key] {
			seen[key] = true
			states = append(states, namedState{name, root})
		}
	}
	commits := a.newest(ctx, heads)
	for _, c := range commits {
		name := "current"
		if len(commits) > 1 {
			name = fmt.Sprintf("current of %s", c.Client)
		}
		add(name, c.Root)
		snaps, err := listSnapshots(ctx, a.tree(c.Snapshots))
		if err != nil {
			continue
		}
		for _, s := range snaps {
			add(s.Name, s.Root)
		}
	}
	return states, ctx.Err()
}

// newest returns the commits of heads that no other of them has seen, as far as they can be read.
func (a *affected) newest(ctx context.Context, heads []store.Head) []*store.Commit {
	var commits []*store.Commit
	seen := history{}
	for _, h := range heads {
		if c, err := a.repo.GetCommit(ctx, h); err == nil {
			commits = append(commits, c)
			seen.add(withoutChain(c.Seen, c.Client, c.Incarnation)...)
		}
	}
	return slices.DeleteFunc(commits, func(c *store.Commit) bool { return seen.contains(c.Head()) })
}

func (a *affected) tree(root store.Ref) *tree.Tree {
	return tree.New(remoteNodes{a.ca}, root, tree.Options{Key: a.repo.TreeKey()})
}

// loss is a lost chunk or node, and the inode whose record leads to it; 0 if it is a node of the tree itself.
type loss struct {
	ino Ino
	id  store.ID
}

func (a *affected) state(ctx context.Context, s namedState, fn func(string, store.ID)) error {
	var losses []loss
	if err := a.walk(ctx, s.root, 0, func(l loss) { losses = append(losses, l) }); err != nil {
		return err
	}
	r := &layered{base: a.tree(s.root)}
	for _, l := range losses {
		if l.ino == 0 {
			fn(s.name, l.id)
			continue
		}
		for _, path := range linkedPaths(ctx, r, l.ino) {
			fn(s.name+":"+path, l.id)
		}
	}
	return nil
}

// walk calls fn for what is lost in the node and below it. ino is the inode whose content the node belongs to, 0 for a node
// of the tree itself.
func (a *affected) walk(ctx context.Context, ref store.Ref, ino Ino, fn func(loss)) error {
	if a.clean[ref.ID] || ref.IsZero() {
		return nil
	}
	found := false
	note := func(l loss) {
		found = true
		fn(l)
	}
	if a.lost(ref.ID) {
		note(loss{ino, ref.ID})
	}
	if ref.Kind == store.RefNode {
		n, err := a.load(ctx, ref)
		if n == nil || err != nil {
			return err
		}
		for i := range n.Entries {
			if err := a.record(ctx, n, &n.Entries[i], ino, note); err != nil {
				return err
			}
		}
	}
	a.clean[ref.ID] = !found
	return nil
}

// record walks what an entry of a node refers to.
func (a *affected) record(ctx context.Context, n *store.Node, e *store.Entry, ino Ino, fn func(loss)) error {
	if ino == 0 && n.Level == 0 {
		ino, _, _, _ = splitKey(string(e.Key))
	}
	for _, ref := range e.Refs {
		if err := a.walk(ctx, ref, ino, fn); err != nil {
			return err
		}
	}
	return nil
}

// linkedPaths returns a path for each name of ino, as far as the tree can be read.
func linkedPaths(ctx context.Context, r *layered, ino Ino) []string {
	if ino == Root {
		return []string{"/"}
	}
	var paths []string
	for _, l := range linksOf(ctx, r, ino) {
		paths = append(paths, dirPath(ctx, r, l.parent)+"/"+l.name)
	}
	if len(paths) == 0 {
		return []string{fmt.Sprintf("/? (inode %d)", ino)}
	}
	return paths
}

// maxDepth bounds the way up to the root in a damaged tree.
const maxDepth = 4096

// dirPath returns the path of a directory, "" for the root.
func dirPath(ctx context.Context, r *layered, dir Ino) string {
	path := ""
	for range maxDepth {
		if dir == Root {
			return path
		}
		up := linksOf(ctx, r, dir)
		if len(up) == 0 {
			break
		}
		dir, path = up[0].parent, "/"+up[0].name+path
	}
	return "/?" + path
}

// nameIn is one name of an inode.
type nameIn struct {
	parent Ino
	name   string
}

func linksOf(ctx context.Context, r *layered, ino Ino) []nameIn {
	var links []nameIn
	_ = r.scan(ctx, string(key(ino, keyLink, 0)), prefixEnd(ino, keyLink), func(k string, _ *store.Entry) bool {
		if _, _, rest, _ := splitKey(k); len(rest) > 8 {
			links = append(links, nameIn{Ino(binary.BigEndian.Uint64([]byte(rest))), rest[8:]})
		}
		return true
	})
	return links
}
