package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

var errNotExist = remote.ErrNotExist

// FileVersion is a content that a file has had.
type FileVersion struct {
	Path    string    `json:"path"`             // where it was then, at last
	Others  []string  `json:"others,omitempty"` // where it was before, with this content
	Size    uint64    `json:"size"`
	Mode    uint32    `json:"mode"` // as in st_mode
	Mtime   time.Time `json:"mtime"`
	By      string    `json:"changed_by"` // id of the client that wrote it
	Content string    `json:"content"`    // id of the content, or where a link points; "" if it is empty
	States  []string  `json:"snapshots"`  // the snapshots that have it, the oldest first, and "current"
	Commit  time.Time `json:"commit"`     // of the oldest state that has it, by its maker's clock
}

// pastState is a snapshot, a commit, or the state of now.
type pastState struct {
	name string // "" for a commit without a name
	time time.Time
	root store.Ref
}

// History returns the versions of a file, the newest first: those in snapshots, and those in the newest commits of each client as
// far as they have not been collected; commits bounds how many of each are looked at. A file is followed by its inode,
// whatever its name was, and where that ends, by its path: an editor may have put it in the place of another.
func (v *Volume) History(ctx context.Context, path string, commits int) ([]FileVersion, error) {
	states, err := v.pastStates(ctx, commits)
	if err != nil {
		return nil, err
	}
	h := &fileHistory{v: v, path: path}
	for _, s := range states { // the newest first
		if err := h.look(ctx, s); err != nil {
			return nil, err
		}
	}
	if len(h.versions) == 0 {
		return nil, fmt.Errorf("%s: in no state that is kept: %w", path, syscall.ENOENT)
	}
	return h.versions, nil
}

// pastStates returns the states to look at, the newest first.
func (v *Volume) pastStates(ctx context.Context, commits int) ([]pastState, error) {
	_, root, err := v.state(ctx, CurrentState)
	if err != nil {
		return nil, err
	}
	states := []pastState{{CurrentState, v.opt.Now(), root}}
	var past []pastState
	snaps, err := v.AllSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Backward(snaps) { // of one time the newest first, too
		past = append(past, pastState{s.Name, s.Time, s.Root})
	}
	f := v.follower
	f.mu.Lock()
	heads := slices.Clone(f.heads)
	f.mu.Unlock()
	for _, h := range heads {
		chain, err := v.pastCommits(ctx, h, commits)
		if err != nil {
			return nil, err
		}
		// A commit has the time at which it was published; that of a snapshot of the same state is the better one.
		past = append(past, slices.DeleteFunc(chain, func(c pastState) bool {
			return slices.ContainsFunc(snaps, func(s Snapshot) bool { return s.Root.ID == c.root.ID })
		})...)
	}
	slices.SortStableFunc(past, func(a, b pastState) int { return b.time.Compare(a.time) })
	return append(states, past...), nil
}

// pastCommits returns the states of the newest commits from h on whose trees are still there.
func (v *Volume) pastCommits(ctx context.Context, h store.Head, n int) ([]pastState, error) {
	var states []pastState
	for ; n > 0 && !h.IsZero(); n-- {
		c, err := v.repo.GetCommit(ctx, h)
		if isGone(err) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !c.Root.IsZero() {
			if _, err := v.ca.Node(ctx, c.Root); isGone(err) {
				break
			} else if err != nil {
				return nil, err
			}
			states = append(states, pastState{"", c.Time, c.Root})
		}
		if c.Seq == 1 {
			break
		}
		h.Seq, h.Hash = c.Seq-1, c.Prev
	}
	return states, nil
}

// fileHistory follows one file back in time.
type fileHistory struct {
	v        *Volume
	path     string // in the state that was looked at last
	ino      Ino    // in that state; 0 before the first
	root     store.ID
	last     bool // the state looked at last has the file
	versions []FileVersion
}

// look notes the version that a state has.
func (h *fileHistory) look(ctx context.Context, s pastState) error {
	if s.root.ID == h.root { // nothing has changed
		h.name(s)
		return nil
	}
	r := h.v.stateAt(s.root)
	w, err := h.find(ctx, r)
	if isGone(err) && s.name == "" {
		return nil // it has been collected in part
	}
	if err != nil {
		return fmt.Errorf("%s: %w", describeState(s), err)
	}
	h.root, h.last = s.root.ID, w != nil
	if w == nil {
		return nil
	}
	content := ""
	a := w.attrs
	if id := contentID(w); !id.IsZero() {
		content = id.String()
	} else if len(a.Target) > 0 {
		content = string(a.Target)
	}
	if n := len(h.versions); n > 0 {
		last := &h.versions[n-1]
		if last.Content == content && last.Size == a.Size {
			if h.path != last.Path && !slices.Contains(last.Others, h.path) {
				last.Others = append(last.Others, h.path)
			}
			h.name(s)
			return nil
		}
	}
	h.versions = append(h.versions, FileVersion{Path: h.path, Size: a.Size, Mode: a.Mode, Mtime: a.Mtime.Time().UTC(),
		By: a.Changed.String(), Content: content, States: []string{}, Commit: s.time.UTC()})
	h.name(s)
	return nil
}

// name adds a state to the version looked at last.
func (h *fileHistory) name(s pastState) {
	if !h.last || len(h.versions) == 0 {
		return
	}
	last := &h.versions[len(h.versions)-1]
	last.Commit = s.time.UTC()
	if s.name != "" {
		last.States = slices.Insert(last.States, 0, s.name)
	}
}

func describeState(s pastState) string {
	if s.name != "" {
		return s.name
	}
	return "commit of " + s.time.Format(time.RFC3339)
}

// find returns the file in a state, by its inode or else by its path; nil if it is not there.
func (h *fileHistory) find(ctx context.Context, r *layered) (*version, error) {
	if h.ino != 0 {
		w, err := loadVersion(ctx, r, h.ino)
		if err != nil {
			return nil, err
		}
		if w.exists() {
			h.path = pathNear(ctx, r, &w, h.path)
			return &w, nil
		}
	}
	ino, err := h.v.resolvePath(ctx, r, h.path)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w, err := loadVersion(ctx, r, ino)
	if err != nil || !w.exists() {
		return nil, err
	}
	h.ino, h.path = ino, pathNear(ctx, r, &w, h.path)
	return &w, nil
}

// pathNear returns the path of a file: the one that it has in the other state if it has that here too.
func pathNear(ctx context.Context, r *layered, w *version, path string) string {
	p := newPaths(r)
	first := path
	for i, l := range w.links {
		at := p.of(ctx, l)
		if at == path {
			return path
		}
		if i == 0 {
			first = at
		}
	}
	return first
}
