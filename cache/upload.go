package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
	"golang.org/x/sync/errgroup"
)

// uploads are the multichunks on their way to the remote. They wait in memory, or
// in the spool when uploading cannot keep up or the remote is away. Each is tried
// until it works or the cache is closed.
type uploads struct {
	limit int // multichunks in memory, waiting and running

	mu       sync.Mutex // guards all below
	changed  chan struct{}
	queue    []*upload // waiting: urgent ones, then others, each the oldest first
	all      map[store.Name]*upload
	inMemory int
	slow     bool // uploading cannot keep up: do not wait before spooling
	stalled  int  // multichunks that wait for room
	err      error
	since    time.Time // when uploads began to fail

	metFull   error     // with which the remote has refused a multichunk as it was full; nil since one was put
	noBallast time.Time // since when the ballast was missed; zero if it is there
	hurry     bool      // it need not be waited for
	uploaded  int64     // bytes on the wire
}

// upload is one multichunk on its way.
type upload struct {
	name  store.Name
	kind  store.Kind
	size  int64 // bytes on the wire
	wire  []byte
	table []store.TableEntry
	free  func() // gives wire back
	done  chan struct{}

	urgent bool        // goes before others; guarded by uploads.mu
	put    bool        // the remote has it; only touched by the worker
	given  atomic.Bool // nobody waits for it any more
}

func newUploads(limit int) *uploads {
	return &uploads{limit: limit, changed: make(chan struct{}), all: make(map[store.Name]*upload)}
}

// change lets all look again who wait for a change. The caller holds mu.
func (u *uploads) change() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// add queues an upload if there is room; spooled ones take none.
func (u *uploads) add(up *upload) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up.wire != nil {
		if !u.roomLocked(up.urgent) {
			return false
		}
		u.inMemory++
		if u.inMemory <= u.limit/2 {
			u.slow = false
		}
	}
	u.queue = append(u.queue, up)
	u.all[up.name] = up
	u.sortLocked()
	u.change()
	return true
}

// roomLocked reports whether one more may be in memory. There is always room for an urgent one beside the others.
func (u *uploads) roomLocked(urgent bool) bool {
	return u.inMemory < u.limit || urgent && u.inMemory == u.limit
}

// sortLocked puts urgent uploads first.
func (u *uploads) sortLocked() {
	first := func(up *upload) int {
		if up.urgent {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(u.queue, func(a, b *upload) int { return first(a) - first(b) })
}

// prefer makes uploads urgent, and returns those of them that are under way.
func (u *uploads) prefer(names map[store.Name]bool) []*upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	var found []*upload
	for n := range names {
		if up := u.all[n]; up != nil {
			up.urgent = true
			found = append(found, up)
		}
	}
	u.sortLocked()
	u.change()
	return found
}

// next takes the first waiting upload, or the first urgent one.
func (u *uploads) next(ctx context.Context, urgent bool) (*upload, error) {
	for {
		u.mu.Lock()
		changed := u.changed
		if len(u.queue) > 0 && (u.queue[0].urgent || !urgent) {
			up := u.queue[0]
			u.queue = slices.Delete(u.queue, 0, 1)
			u.mu.Unlock()
			return up, nil
		}
		u.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// finish forgets an upload that is done or has come to nothing.
func (u *uploads) finish(up *upload, inMemory, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, up.name)
	if inMemory {
		u.inMemory--
	}
	if ok {
		u.uploaded += up.size
	}
	u.change()
	close(up.done)
}

// result notes how an attempt went.
func (u *uploads) result(err error, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil && u.err == nil:
		u.since = now
		slog.Warn("upload does not work; it is tried again until it does", "err", err)
	case err == nil && u.err != nil:
		slog.Info("uploads work again", "after", now.Sub(u.since))
	}
	u.err = err
	if err == nil {
		u.metFull, u.noBallast = nil, time.Time{}
	} else if errors.Is(err, remote.ErrNoSpace) {
		u.metFull = err
	}
	u.change()
}

// waiting returns what is under way of a kind.
func (u *uploads) waiting(kind store.Kind) []*upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []*upload
	for _, up := range u.all {
		if up.kind == kind {
			list = append(list, up)
		}
	}
	return list
}

// source returns a multichunk that is under way in memory.
func (u *uploads) source(n store.Name) ([]byte, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	up := u.all[n]
	if up == nil || up.wire == nil {
		return nil, false
	}
	// A copy, because the bytes are used again when the upload is done.
	return slices.Clone(up.wire), true
}

// has reports whether a multichunk is under way.
func (u *uploads) has(n store.Name) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[n] != nil
}

// uploadRoom waits until there may be room for one more in memory. It reports false if
// the multichunk should rather be spooled.
func (c *Cache) uploadRoom(ctx context.Context, urgent bool) (bool, error) {
	u := c.uploads
	patience := time.NewTimer(c.o.SpoolAfter)
	defer patience.Stop()
	for {
		u.mu.Lock()
		changed, room, away := u.changed, u.roomLocked(urgent), u.err != nil || u.slow
		u.mu.Unlock()
		if room {
			return true, nil
		}
		if away {
			return false, nil
		}
		select {
		case <-changed:
		case <-patience.C:
			u.mu.Lock()
			u.slow = true
			u.mu.Unlock()
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// waitChange waits until something about the uploads or the space has changed. If the remote is full it does not wait, and says so.
func (c *Cache) waitChange(ctx context.Context) error {
	c.uploads.mu.Lock()
	changed, full := c.uploads.changed, c.uploads.fullLocked()
	c.uploads.mu.Unlock()
	if full != nil {
		return full
	}
	select {
	case <-changed:
		return nil
	case <-c.space.freedChan():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stall counts those who wait for room.
func (u *uploads) stall(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stalled += n
	u.change()
}

// waitStall waits while a multichunk waits for room: packing more would have to
// wait too, and could not be broken off.
func (u *uploads) waitStall(ctx, closed context.Context) error {
	for {
		u.mu.Lock()
		changed, stalled := u.changed, u.stalled
		u.mu.Unlock()
		if stalled == 0 {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-closed.Done():
			return ErrClosed
		}
	}
}

// enqueue takes a sealed multichunk over. It waits while there is room for it
// neither in memory nor in the spool, unless the remote is full, which is an error.
func (c *Cache) enqueue(ctx context.Context, s *store.Sealed) (*upload, error) {
	up := &upload{name: s.Name, kind: s.Kind, size: int64(len(s.Wire)), wire: s.Wire, table: s.Table, free: s.Release, done: make(chan struct{})}
	up.urgent = up.kind == store.KindNodes // all that they refer to is there, and they are what others wait for
	c.uploads.stall(1)
	defer c.uploads.stall(-1)
	for {
		room, err := c.uploadRoom(ctx, up.urgent)
		if err != nil {
			return nil, err
		}
		if room {
			if c.uploads.add(up) {
				return up, nil
			}
			continue
		}
		if up.kind == store.KindData && c.space.take(up.size+spoolFooterSize, forData) {
			err := c.spool(up)
			if err == nil {
				return up, nil
			}
			c.space.give(up.size + spoolFooterSize)
			c.trouble(err)
		}
		if err := c.waitChange(ctx); err != nil {
			return nil, err
		}
	}
}

func spoolName(n store.Name) string { return "spool/" + n.String() }

const spoolFooterSize = 12 // checksum, magic

// spool makes a multichunk last on the local disk and queues it. Its chunks then
// no longer need their places in the log.
func (c *Cache) spool(up *upload) error {
	footer := binary.BigEndian.AppendUint32(nil, crc32.Checksum(up.wire, castagnoli))
	footer = append(footer, magicSpool[:]...)
	err := c.retryFull(up.size, func() error { return writeFile(c.fsys, spoolName(up.name), up.wire, footer) })
	if err != nil {
		return fmt.Errorf("spool multichunk %v: %w", up.name, err)
	}
	up.free()
	up.wire = nil
	c.markSpooled(up.table)
	c.uploads.add(up)
	return nil
}

// readSpool returns a multichunk from the spool.
func (c *Cache) readSpool(n store.Name) ([]byte, error) {
	b, err := readFile(c.fsys, spoolName(n), store.MaxMultichunk+1<<20)
	if err != nil {
		return nil, err
	}
	size := len(b) - spoolFooterSize
	if size < 0 || magic(b[size+4:]) != magicSpool || crc32.Checksum(b[:size], castagnoli) != binary.BigEndian.Uint32(b[size:]) {
		return nil, corruptf("local file %s", spoolName(n))
	}
	return b[:size], nil
}

// loadSpool queues what an earlier process has left. Of a full spool the tables are most of what a restart has to read.
func (c *Cache) loadSpool() error {
	list, err := c.fsys.List("spool")
	if err != nil {
		return err
	}
	tables, errs := make([][]store.TableEntry, len(list)), make([]error, len(list))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, info := range list {
		if n, ok := parseName(info.Name); ok {
			g.Go(func() error {
				tables[i], errs[i] = c.spooledTable(n, info.Size)
				return nil
			})
		}
	}
	g.Wait()
	for i, info := range list {
		n, ok := parseName(info.Name)
		switch err := errs[i]; {
		case !ok:
			c.fsys.Remove("spool/" + info.Name) // not finished
		case err == nil:
			c.addSpooled(n, info.Size, tables[i])
		case errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrEpoch):
			// Its chunks are packed anew if the log still has them.
			c.trouble(err)
			c.fsys.Remove(spoolName(n))
		default:
			return err
		}
	}
	return nil
}

func (c *Cache) spooledTable(n store.Name, size int64) ([]store.TableEntry, error) {
	f, err := c.fsys.Open(spoolName(n))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_, table, err := c.repo.ReadTable(f, size-spoolFooterSize, n)
	return table, err
}

func (c *Cache) addSpooled(n store.Name, size int64, table []store.TableEntry) {
	c.space.force(size)
	for i := range table {
		e := &table[i]
		c.pending[e.ID] = &pendingChunk{len: e.Len, hint: e.Hint, state: chunkSpooled}
	}
	c.uploads.add(&upload{name: n, kind: store.KindData, size: size - spoolFooterSize, table: table, free: func() {}, done: make(chan struct{})})
}

// uploader uploads one multichunk after the other, or one urgent one after the other, until the cache is closed.
func (c *Cache) uploader(ctx context.Context, urgent bool) {
	c.repo.Pacer().Worker()
	for {
		up, err := c.uploads.next(ctx, urgent)
		if err != nil {
			return
		}
		inMemory := up.wire != nil
		err = c.upload(ctx, up)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, errUseless) {
			c.trouble(err)
			c.repack(up.table)
		}
		if !inMemory {
			c.unspool(up)
		}
		c.uploads.finish(up, inMemory, err == nil)
		up.free()
	}
}

func (c *Cache) unspool(up *upload) {
	if err := c.fsys.Remove(spoolName(up.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.trouble(err)
	}
	c.space.give(up.size + spoolFooterSize)
}

// upload brings up to the remote and makes its chunks known. It tries for ever,
// unless the bytes themselves are lost.
func (c *Cache) upload(ctx context.Context, up *upload) error {
	wire := up.wire
	if wire == nil {
		var err error
		if wire, err = c.readSpool(up.name); err != nil {
			return fmt.Errorf("upload multichunk %v: %w", up.name, err)
		}
	}
	if err := c.waitAllowed(ctx); err != nil {
		return err
	}
	for pause := c.o.RetryMin; ; pause = min(2*pause, c.o.RetryMax) {
		if c.isUseless(up) {
			return errUseless
		}
		err := c.repo.Pacer().Background(ctx)
		if err == nil {
			err = c.mayPutData(ctx)
		}
		if err == nil {
			err = c.tryUpload(ctx, up, wire)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.uploads.result(err, c.o.Now())
		if err == nil {
			return nil
		}
		early, err := c.again.wait(ctx, pause/2+rand.N(pause/2+1))
		if err != nil {
			return err
		}
		if early {
			pause = c.o.RetryMin / 2
		}
	}
}

func (c *Cache) tryUpload(ctx context.Context, up *upload, wire []byte) error {
	if !up.put {
		if err := c.repo.PutMultichunk(ctx, up.name, wire); err != nil {
			return fmt.Errorf("upload multichunk %v: %w", up.name, err)
		}
		up.put = true
	}
	if up.kind != store.KindData {
		return nil
	}
	if err := c.writeReceipt(up.name, up.table); err != nil {
		return err
	}
	if err := c.addTable(up.name, up.table, true); err != nil {
		return err
	}
	c.verified(up.table)
	return nil
}

// again is a pause that can be cut short for all who make it.
type again struct {
	mu  sync.Mutex // guards now
	now chan struct{}
}

// wait waits for d, or until somebody says that trying again may help now.
func (a *again) wait(ctx context.Context, d time.Duration) (early bool, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false, nil
	case <-a.ch():
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (a *again) ch() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now == nil {
		a.now = make(chan struct{})
	}
	return a.now
}

// wake ends all pauses.
func (a *again) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now != nil {
		close(a.now)
		a.now = nil
	}
}

// Again has everything tried now that waits because the remote was away, or full: it has just answered, or somebody asks for it.
func (c *Cache) Again() {
	u := c.uploads
	u.mu.Lock()
	if u.fullLocked() != nil {
		u.err, u.hurry = nil, true // until it is known anew
		u.change()
	}
	u.mu.Unlock()
	c.again.wake()
}

// Pending tells what is not yet on the remote.
func (c *Cache) Pending() PendingStats {
	var s PendingStats
	c.mu.Lock()
	s.Bytes, s.Chunks = c.pendingBytes, len(c.pending)-c.known
	s.Commits = len(c.commits)
	c.mu.Unlock()
	u := c.uploads
	u.mu.Lock()
	for _, up := range u.all {
		s.Objects++
		if up.wire == nil {
			s.Spool += up.size
		}
	}
	s.Uploaded, s.Err, s.Since = u.uploaded, u.err, u.since
	u.mu.Unlock()
	if s.Err == nil {
		s.Since = time.Time{}
	}
	s.Log, s.LogHeld = c.log.stats()
	s.Used = c.space.used.Load()
	return s
}
