package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// noticesDir is the directory of all notices.
const noticesDir = "gc"

// A NoticeID names a notice. It is random.
type NoticeID [16]byte

// String returns the id in lower-case hex, as it stands on the remote.
func (id NoticeID) String() string { return hex.EncodeToString(id[:]) }

// A Notice tells all clients what garbage collection is about to do. A client that has read it goes by it from then on, and says
// so in its commits: from what is condemned it takes no chunk that it does not refer to already, and from an evicted
// incarnation nothing that came after the commit named here. What a notice says is never taken back: see docs/gc.md.
type Notice struct {
	ID        NoticeID
	Condemned []Name // multichunks to be deleted, sorted
	Evicted   []Head // the last commits that count of incarnations that need not be waited for; number 0 if none counts

	Passing []Passing // histories of which nobody needs the beginning, or anything
}

// A Passing is the history of an incarnation of which all who count have seen so much that nobody needs what came before: no merge
// starts from there. One that has ended nobody needs at all.
type Passing struct {
	Incarnation Incarnation
	Seq         Seq // commits before it are not needed
	Ended       bool
}

// Bounds of a notice.
const (
	maxCondemned  = 1 << 20  // multichunks in one notice; the rest comes with the next
	maxNoticeWire = 32 << 20 // bytes; what is longer is none of ours
)

func appendNotice(dst []byte, n *Notice) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(n.Condemned)))
	for _, name := range n.Condemned {
		dst = append(dst, name[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(n.Evicted)))
	for _, h := range n.Evicted {
		dst = appendHead(dst, h)
	}
	if len(n.Passing) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(n.Passing)))
	for _, p := range n.Passing {
		dst = append(dst, p.Incarnation[:]...)
		dst = appendBool(dst, p.Ended)
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.Seq))
	}
	return dst
}

// parseNotice is the inverse of appendNotice. The id is not in the bytes: it is the object's name.
func parseNotice(b []byte) (*Notice, error) {
	d := decoder{b: b}
	n := &Notice{}
	if count := d.count(len(Name{})); count > 0 {
		n.Condemned = make([]Name, count)
	}
	for i := range n.Condemned {
		n.Condemned[i] = d.bytes16()
	}
	for range d.count(headSize) {
		n.Evicted = append(n.Evicted, d.head())
	}
	if len(d.b) > 0 { // most have none
		for range d.count(16 + 1 + 8) {
			n.Passing = append(n.Passing, Passing{Incarnation: d.bytes16(), Ended: d.bool(), Seq: Seq(d.uint64())})
		}
	}
	sorted := slices.IsSortedFunc(n.Condemned, compareNames)
	if d.bad || !sorted || len(n.Condemned) > maxCondemned {
		return nil, corruptf("notice")
	}
	return n, nil
}

func compareNames(a, b Name) int { return bytes.Compare(a[:], b[:]) }

// condemns reports whether n condemns a multichunk.
func (n *Notice) condemns(name Name) bool {
	_, found := slices.BinarySearchFunc(n.Condemned, name, compareNames)
	return found
}

func noticeName(id NoticeID) string { return noticesDir + "/" + id.String() }

// putNotice publishes n under a new id.
func (r *Repository) putNotice(ctx context.Context, n *Notice) error {
	rand.Read(n.ID[:])
	name := noticeName(n.ID)
	_, err := r.putSealed(ctx, seal.KindNotice, name, appendNotice(nil, n))
	if err == nil {
		return nil
	}
	// Half of it would stop every collection. What opens may have been acknowledged, and stays.
	if wire, getErr := r.st.Get(ctx, name, 0, -1); getErr == nil && r.openSmall(name, wire) != nil {
		_ = r.st.Delete(ctx, name)
	}
	return err
}

// Notices returns all notices that are listed, in the order of their ids, and those of also that the listing lacks and that are
// still there: a client asks for those that it has gone by before. It is an error if one of them cannot be read.
func (r *Repository) Notices(ctx context.Context, also []NoticeID) ([]*Notice, error) {
	ids, err := r.listNotices(ctx)
	if err != nil {
		return nil, err
	}
	ids = append(ids, also...)
	slices.SortFunc(ids, compareNotices)
	ids = slices.Compact(ids)
	found, err := r.getNotices(ctx, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(n *Notice) bool { return n == nil }), nil
}

func compareNotices(a, b NoticeID) int { return bytes.Compare(a[:], b[:]) }

// isSealedSize reports whether a small sealed object may have that length, as listed. What has another has been left by a put that broke
// off, so that nobody has gone by it.
func isSealedSize(size int64) bool {
	return size < 0 || size >= seal.MinWire && int64(seal.PadSize(int(size))) == size
}

// listNotices returns what is listed, each once, in the order of ids.
func (r *Repository) listNotices(ctx context.Context) ([]NoticeID, error) {
	var ids []NoticeID
	err := listObjects(ctx, r.st, noticesDir, func(id [16]byte, e remote.Entry) {
		if e.Size <= maxNoticeWire && isSealedSize(e.Size) {
			ids = append(ids, id)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(ids, compareNotices)
	return slices.Compact(ids), nil
}

// getNotices fetches notices; nil stands for one that is not there.
func (r *Repository) getNotices(ctx context.Context, ids []NoticeID) ([]*Notice, error) {
	found := make([]*Notice, len(ids))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, id := range ids {
		group.Go(func() (err error) {
			found[i], err = r.notice(groupCtx, id)
			if errors.Is(err, remote.ErrNotExist) {
				return nil // all that it condemned is gone, and so is it
			}
			return err
		})
	}
	return found, group.Wait()
}

// notice fetches a notice. It is asked for even if it has been read before: it may have been deleted.
func (r *Repository) notice(ctx context.Context, id NoticeID) (*Notice, error) {
	n, _, err := getSealed(ctx, r, noticeName(id), r.openNotice)
	if err != nil {
		return nil, err
	}
	n.ID = id
	return n, nil
}

func (r *Repository) openNotice(name string, wire []byte) (*Notice, error) {
	return openSealed(r.keys, seal.KindNotice, name, wire, parseNotice)
}

// Condemned is what a client knows of all notices. It forgets nothing: a notice that is gone has had its effect, and a table that was
// read before may come late. The zero value knows none. It is safe for concurrent use.
type Condemned struct {
	mu      sync.Mutex // guards what follows
	names   map[Name]bool
	notices map[NoticeID]bool
	gone    map[NoticeID]bool // of the known ones: those that were asked for and are not there any more
	evicted map[chain]Head
	ended   map[Incarnation]bool
	ending  map[NoticeID][]Incarnation // ended by notices of which NotePast has not heard
	there   map[NoticeID]bool          // as last read
}

// Read makes the notices of r known, and returns those that are there, in the order of their ids: those that are listed, and of also
// those that the listing lacks and that are still there. Also are those that the client's newest commit acknowledges. Fresh are the
// multichunks that were not condemned before: their chunks must be forgotten. What is known already is not fetched again. After an
// error nothing new is known.
func (c *Condemned) Read(ctx context.Context, r *Repository, also []NoticeID) (present []NoticeID, fresh []Name, err error) {
	listed, err := r.listNotices(ctx)
	if err != nil {
		return nil, nil, err
	}
	ask := listed
	for _, id := range also {
		if _, found := slices.BinarySearchFunc(listed, id, compareNotices); !found && !c.isGone(id) {
			ask = append(slices.Clip(ask), id)
		}
	}
	var missing []NoticeID
	for _, id := range ask {
		if _, isListed := slices.BinarySearchFunc(listed, id, compareNotices); isListed && c.knows(id) {
			present = append(present, id)
		} else {
			missing = append(missing, id)
		}
	}
	notices, err := r.getNotices(ctx, missing)
	if err != nil {
		return nil, nil, err
	}
	fresh = c.Add(notices)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range missing {
		if notices[i] != nil {
			present = append(present, id)
		} else {
			c.gone[id] = true
		}
	}
	slices.SortFunc(present, compareNotices)
	c.there = map[NoticeID]bool{}
	for _, id := range present {
		c.there[id] = true
	}
	return present, fresh, nil
}

// MustReadPast reports whether a notice that ended incarnations is not there any more, so that ReadPast tells what became of them.
func (c *Condemned) MustReadPast() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.ending {
		if !c.there[id] {
			return true
		}
	}
	return false
}

// NotePast makes MustReadPast quiet about what r has found to be past.
func (c *Condemned) NotePast(r *Repository) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, ended := range c.ending {
		if !slices.ContainsFunc(ended, func(i Incarnation) bool { return !r.past.get(i).ended }) {
			delete(c.ending, id)
		}
	}
}

// HasEnded reports whether h is of an incarnation that a notice has ended.
func (c *Condemned) HasEnded(h Head) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended[h.Incarnation]
}

func (c *Condemned) knows(id NoticeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notices[id]
}

func (c *Condemned) isGone(id NoticeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone[id]
}

// Add makes notices known, and returns the multichunks that were not condemned before: their chunks must be forgotten.
func (c *Condemned) Add(notices []*Notice) []Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names == nil {
		c.names, c.notices, c.gone, c.evicted = map[Name]bool{}, map[NoticeID]bool{}, map[NoticeID]bool{}, map[chain]Head{}
		c.ended, c.ending = map[Incarnation]bool{}, map[NoticeID][]Incarnation{}
	}
	var fresh []Name
	for _, n := range notices {
		if n == nil || c.notices[n.ID] {
			continue
		}
		c.notices[n.ID] = true
		for _, name := range n.Condemned {
			if !c.names[name] {
				c.names[name] = true
				fresh = append(fresh, name)
			}
		}
		for _, h := range n.Evicted {
			c.evicted[h.chain()] = earlier(c.evicted, h)
		}
		for _, p := range n.Passing {
			if p.Ended {
				c.ended[p.Incarnation] = true
				c.ending[n.ID] = append(c.ending[n.ID], p.Incarnation)
			}
		}
	}
	return fresh
}

// earlier returns the earlier of h and what is known of its chain: two collectors may evict at different commits.
func earlier(known map[chain]Head, h Head) Head {
	if before, ok := known[h.chain()]; ok && before.Seq <= h.Seq {
		return before
	}
	return h
}

// Has reports whether multichunk n is condemned: nobody may deduplicate against it.
func (c *Condemned) Has(n Name) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[n]
}

// Heads returns heads as they count: of evicted incarnations nothing later than their eviction, and none of those that have ended.
func (c *Condemned) Heads(heads []Head) []Head {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(cutEvicted(heads, c.evicted), func(h Head) bool { return c.ended[h.Incarnation] })
}

func cutEvicted(heads []Head, evicted map[chain]Head) []Head {
	var counting []Head
	for _, h := range heads {
		if last, ok := evicted[h.chain()]; ok && h.Seq > last.Seq {
			h = last
		}
		if !h.IsZero() {
			counting = append(counting, h)
		}
	}
	return counting
}

// Evicted reports whether an incarnation has been evicted: it must publish nothing more.
func (c *Condemned) Evicted(client ClientID, i Incarnation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.evicted[chain{client, i}]
	return ok
}
