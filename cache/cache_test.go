package cache_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// countingStorage counts gets, and can be away.
type countingStorage struct {
	remote.Storage
	gets, puts atomic.Int64
	away       atomic.Bool
	slow       atomic.Int64 // nanoseconds that a get takes
}

var errAway = errors.New("no route to host")

func (s *countingStorage) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	s.gets.Add(1)
	time.Sleep(time.Duration(s.slow.Load()))
	if s.away.Load() {
		return nil, errAway
	}
	return s.Storage.Get(ctx, name, off, n)
}

func (s *countingStorage) Put(ctx context.Context, name string, data []byte) error {
	s.puts.Add(1)
	if s.away.Load() {
		return errAway
	}
	return s.Storage.Put(ctx, name, data)
}

// fixture is a repository, and the disk of one client.
type fixture struct {
	t    *testing.T
	rng  *rand.Rand
	mem  *remotetest.Mem
	st   *countingStorage
	repo *store.Repository
	disk *cachetest.Disk
	o    cache.Options
	c    *cache.Cache

	later atomic.Int64 // nanoseconds that the cache's clock is ahead
}

func (f *fixture) now() time.Time { return time.Now().Add(time.Duration(f.later.Load())) }

func newFixture(t *testing.T) *fixture {
	mem := remotetest.NewMem()
	st := &countingStorage{Storage: mem}
	disk := cachetest.NewDisk(0)
	f := &fixture{t: t, rng: newRand(t), mem: mem, st: st, disk: disk, repo: storetest.New(t, st)}
	f.o = cache.Options{
		Size: 16 << 20, Segment: 128 << 10, Files: disk, Memory: 4 << 20, NodeMemory: 1 << 20,
		RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, Offline: 50 * time.Millisecond, SpaceWait: 50 * time.Millisecond, SpoolAfter: 20 * time.Millisecond,
	}
	return f
}

// open opens the cache and closes it with the test.
func (f *fixture) open() *cache.Cache {
	f.t.Helper()
	c, err := cache.Open(f.t.Context(), "", f.repo, &f.o)
	if err != nil {
		f.t.Fatalf("Open: %v", err)
	}
	f.t.Cleanup(func() { c.Close() })
	f.c = c
	return c
}

func (f *fixture) reopen() *cache.Cache {
	f.t.Helper()
	f.close()
	return f.open()
}

func (f *fixture) close() {
	f.t.Helper()
	if err := f.c.Close(); err != nil {
		f.t.Fatalf("Close: %v", err)
	}
}

// chunk is one that a test has stored.
type chunk struct {
	ref  store.Ref
	data []byte
}

// add writes a chunk into the log and stores it.
func (f *fixture) add(data []byte) chunk {
	f.t.Helper()
	ck, err := f.tryAdd(data)
	if err != nil {
		f.t.Fatal(err)
	}
	return ck
}

func (f *fixture) tryAdd(data []byte) (chunk, error) {
	_, at, err := f.c.Log().Append(cache.FirstType, []byte("write"), data)
	if err != nil {
		return chunk{}, err
	}
	id := f.repo.ChunkID(data)
	_, err = f.c.AddChunk(f.t.Context(), id, data, cache.Place{{Pos: at, Len: uint32(len(data))}})
	return chunk{store.Ref{ID: id}, data}, err
}

func (f *fixture) addRandom(n, size int) []chunk {
	f.t.Helper()
	var list []chunk
	for range n {
		list = append(list, f.add(randomBytes(f.rng, size)))
	}
	return list
}

// check reads chunks back.
func (f *fixture) check(c *cache.Cache, chunks []chunk) {
	f.t.Helper()
	for i, ck := range chunks {
		got, err := c.Chunk(f.t.Context(), ck.ref)
		if err != nil {
			f.t.Fatalf("chunk %d: %v", i, err)
		}
		if !bytes.Equal(got, ck.data) {
			f.t.Fatalf("chunk %d: other bytes", i)
		}
	}
}

// save saves a tree of two levels over chunks and returns its root.
func save(ctx context.Context, lc *cache.LocalCommit, chunks []chunk, salt string) (store.Ref, error) {
	root := &store.Node{Level: 1}
	for i := 0; i < len(chunks); i += 8 {
		leaf := &store.Node{}
		for j, ck := range chunks[i:min(i+8, len(chunks))] {
			key := binary.BigEndian.AppendUint64(nil, uint64(i+j))
			leaf.Entries = append(leaf.Entries, store.Entry{Key: key, Value: []byte(salt), Refs: []store.Ref{ck.ref}})
		}
		ref, err := lc.Save(ctx, leaf)
		if err != nil {
			return store.Ref{}, err
		}
		root.Entries = append(root.Entries, store.Entry{Key: leaf.Entries[0].Key, Refs: []store.Ref{ref}})
	}
	return lc.Save(ctx, root)
}

// commit makes a local commit of chunks and returns its root.
func (f *fixture) commit(chunks []chunk, salt string) store.Ref {
	f.t.Helper()
	root, err := f.tryCommit(chunks, salt)
	if err != nil {
		f.t.Fatal(err)
	}
	return root
}

func (f *fixture) tryCommit(chunks []chunk, salt string) (store.Ref, error) {
	lc := f.c.NewLocalCommit()
	defer lc.Discard()
	root, err := save(f.t.Context(), lc, chunks, salt)
	if err == nil {
		err = lc.Finish(root, store.Ref{}, f.c.Log().End(), []byte(salt))
	}
	return root, err
}

// publish brings the newest local commit to the remote.
func (f *fixture) publish() *cache.Publication {
	f.t.Helper()
	p, err := f.c.PackForPublication(f.t.Context(), nil)
	if err == nil && p == nil {
		err = errors.New("nothing to publish")
	}
	if err == nil {
		err = f.c.Published(p)
	}
	if err != nil {
		f.t.Fatalf("publish: %v", err)
	}
	return p
}

// checkTree reads a tree of save and compares its chunks.
func (f *fixture) checkTree(c *cache.Cache, root store.Ref, chunks []chunk, salt string) {
	f.t.Helper()
	if err := f.tryTree(c, root, chunks, salt); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) tryTree(c *cache.Cache, root store.Ref, chunks []chunk, salt string) error {
	top, err := c.Node(f.t.Context(), root)
	if err != nil {
		return err
	}
	i := 0
	for _, e := range top.Entries {
		leaf, err := c.Node(f.t.Context(), e.Refs[0])
		if err != nil {
			return err
		}
		for _, e := range leaf.Entries {
			got, err := c.Chunk(f.t.Context(), e.Refs[0])
			if err != nil {
				return err
			}
			if i >= len(chunks) || !bytes.Equal(got, chunks[i].data) || string(e.Value) != salt {
				return errors.New("tree holds something else")
			}
			i++
		}
	}
	if i != len(chunks) {
		return errors.New("tree is too small")
	}
	return nil
}

// forget loses the database and all that is only cache, and learns from the
// publication where its chunks lie.
func (f *fixture) forget(p *cache.Publication) {
	f.t.Helper()
	f.reopen()
	f.c.EvictAllForTest() // also the last segment, which is not appended to any more
	f.learn(p)
}

func (f *fixture) learn(p *cache.Publication) {
	f.t.Helper()
	var names []store.Name
	for _, m := range p.Multichunks {
		names = append(names, m.Name)
	}
	if err := f.c.LearnTables(f.t.Context(), names); err != nil {
		f.t.Fatal(err)
	}
}

// reader returns a cache that knows the remote alone.
func (f *fixture) reader() *cache.Cache {
	f.t.Helper()
	c, err := cache.OpenReader(f.t.Context(), f.repo, &f.o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

func TestChunkFromEverywhere(t *testing.T) {
	f := newFixture(t)
	f.open()
	chunks := f.addRandom(100, 8000)
	for _, ck := range chunks[:3] {
		if dup, err := f.c.AddChunk(t.Context(), ck.ref.ID, ck.data, nil); !dup || err != nil {
			t.Fatalf("AddChunk of a pending chunk = %v, %v; want a duplicate", dup, err)
		}
	}
	f.check(f.c, chunks)
	f.c.DropMemoryForTest()
	f.check(f.c, chunks) // the log
	f.commit(chunks, "one")
	p := f.publish()
	f.c.DropMemoryForTest()
	f.check(f.c, chunks) // the log still
	if n := f.c.Fetched(); n != 0 {
		t.Errorf("%d bytes fetched of what is in the log", n)
	}
	if dup, err := f.c.AddChunk(t.Context(), chunks[0].ref.ID, chunks[0].data, nil); !dup || err != nil {
		t.Fatalf("AddChunk of a stored chunk = %v, %v; want a duplicate", dup, err)
	}
	f.forget(p)
	f.st.gets.Store(0)
	f.check(f.c, chunks) // the remote
	if n := f.st.gets.Load(); n < 3 || n > 5 {
		t.Errorf("%d gets for 800 kB in multichunks of 256 KiB, want 4", n)
	}
	f.c.DropMemoryForTest()
	f.check(f.c, chunks) // disk
	if n := f.st.gets.Load(); n > 5 {
		t.Errorf("%d gets: multichunks were not kept on disk", n)
	}
}

// TestFetchedStays reads nodes with a memory that keeps nothing: what was fetched is
// there for who begins again because of it.
func TestFetchedStays(t *testing.T) {
	f := newFixture(t)
	f.open()
	f.commit(f.addRandom(20, 3000), "one")
	p := f.publish()
	f.o.NodeMemory = 1
	c := f.reader()
	if _, err := c.Node(t.Context(), p.Root); err != nil {
		t.Fatal(err)
	}
	if _, err := c.LocalNode(p.Root); err != nil {
		t.Errorf("LocalNode of a node that was fetched: %v", err)
	}
}

func TestPublicationIsEnough(t *testing.T) {
	f := newFixture(t)
	f.open()
	chunks := f.addRandom(60, 5000)
	root := f.commit(chunks, "a")
	p := f.publish()
	if p.Root.ID != root.ID || p.Root.Hint.IsZero() || p.N != 1 {
		t.Errorf("publication %d of root %v with hint %v", p.N, p.Root.ID, p.Root.Hint)
	}
	data, nodes := 0, 0
	for _, m := range p.Multichunks {
		switch {
		case m.Kind == store.KindData && len(m.Hooks) > 0:
			data++
		case m.Kind == store.KindNodes && len(m.Hooks) == 0:
			nodes++
		}
	}
	if data == 0 || nodes != 1 || data+nodes != len(p.Multichunks) {
		t.Errorf("%d data and %d node multichunks of %d", data, nodes, len(p.Multichunks))
	}
	f.checkTree(f.reader(), p.Root, chunks, "a")

	// The second publication announces what is new alone.
	more := append(chunks[:len(chunks):len(chunks)], f.add([]byte("one more")))
	f.commit(more, "a")
	p = f.publish()
	if len(p.Multichunks) != 2 {
		t.Errorf("%d multichunks announced for one small chunk and its nodes, want 2", len(p.Multichunks))
	}
	f.checkTree(f.reader(), p.Root, more, "a")
	if p, err := f.c.PackForPublication(t.Context(), nil); p != nil || err != nil {
		t.Errorf("PackForPublication with nothing new = %v, %v", p, err)
	}
}

func TestRestart(t *testing.T) {
	f := newFixture(t)
	f.st.away.Store(true)
	f.open()
	chunks := f.addRandom(40, 5000)
	root := f.commit(chunks, "x")
	for range 2 {
		f.reopen()
		got, _, _, meta, n, published, ok := f.c.LastCommit()
		if got.ID != root.ID || string(meta) != "x" || n != 1 || published || !ok {
			t.Fatalf("LastCommit = %v, meta %q, %d, published %v, %v", got.ID, meta, n, published, ok)
		}
		f.checkTree(f.c, root, chunks, "x")
		if p := f.c.Pending(); p.Chunks != 40 || p.Bytes != 40*5000 || p.Commits != 1 {
			t.Errorf("pending after restart: %+v", p)
		}
	}
	f.st.away.Store(false)
	p := f.publish()
	f.checkTree(f.reader(), p.Root, chunks, "x")
	f.reopen()
	got, _, _, _, n, published, ok := f.c.LastCommit()
	if got != p.Root || n != 1 || !published || !ok {
		t.Errorf("LastCommit after publication = %v, %d, published %v, %v", got, n, published, ok)
	}
	f.checkTree(f.c, got, chunks, "x")
}

// TestPublishWhileCommitting publishes one state while a later one refers to its
// nodes without hints, and then loses the database.
func TestPublishWhileCommitting(t *testing.T) {
	f := newFixture(t)
	f.open()
	chunks := f.addRandom(40, 3000)
	f.commit(chunks, "x")
	p, err := f.c.PackForPublication(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	more := append(chunks[:len(chunks):len(chunks)], f.addRandom(8, 3000)...)
	f.commit(more, "x") // shares leaves with what is being published
	if err := f.c.Published(p); err != nil {
		t.Fatal(err)
	}
	f.reopen() // the database in memory is gone
	f.c.EvictAllForTest()
	root, _, _, _, n, published, _ := f.c.LastCommit()
	if n != 2 || published {
		t.Fatalf("LastCommit is number %d, published %v", n, published)
	}
	f.checkTree(f.c, root, more, "x")
	p = f.publish()
	f.checkTree(f.reader(), p.Root, more, "x")
}

func TestSpool(t *testing.T) {
	f := newFixture(t)
	f.o.InFlight = 512 << 10
	f.st.away.Store(true)
	f.open()
	chunks := f.addRandom(400, 5000) // 2 MB, of which two multichunks stay in memory
	root := f.commit(chunks, "s")
	p := f.c.Pending()
	if p.Spool < 1<<20 || p.Err == nil || p.Since.IsZero() {
		t.Fatalf("with the remote away: %+v", p)
	}
	f.c.DropMemoryForTest()
	f.checkTree(f.c, root, chunks, "s")
	f.reopen()
	if again := f.c.Pending(); again.Spool != p.Spool || again.Chunks != p.Chunks {
		t.Errorf("pending after restart: %+v, before: %+v", again, p)
	}
	f.c.EvictAllForTest()
	f.checkTree(f.c, root, chunks, "s")
	f.st.away.Store(false)
	pub := f.publish()
	if p := f.c.Pending(); p.Bytes != 0 || p.Spool != 0 || p.Objects != 0 || p.Err != nil {
		t.Errorf("after publication: %+v", p)
	}
	if list, _ := f.disk.List("spool"); len(list) > 0 {
		t.Errorf("%d files left in the spool", len(list))
	}
	f.checkTree(f.reader(), pub.Root, chunks, "s")
}

// TestBudget writes far more than the budget, with the remote there and away.
func TestBudget(t *testing.T) {
	f := newFixture(t)
	f.o.Size = 4 << 20
	f.open()
	over := func() {
		t.Helper()
		if p := f.c.Pending(); p.Used > f.o.Size {
			t.Fatalf("%d bytes in use, more than %d", p.Used, f.o.Size)
		}
	}
	var last []chunk
	for range 8 {
		last = f.addRandom(200, 8000) // 1.6 MB
		f.commit(last, "b")
		f.publish()
		over()
	}
	f.check(f.c, last)
	f.st.away.Store(true)
	var err error
	for i := 0; err == nil && i < 10000; i++ {
		_, _, err = f.c.Log().Append(cache.FirstType, nil, randomBytes(f.rng, 8000))
		over()
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append beyond the budget: %v, want ENOSPC", err)
	}
	if _, _, err := f.c.Log().Append(cache.FirstType, []byte("unlink"), nil); err != nil {
		t.Errorf("Append of a record without data to a full log: %v", err)
	}
	if err := f.c.Admit(t.Context(), 1<<20); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Admit: %v, want ENOSPC", err)
	}
	if err := f.c.Admit(t.Context(), 0); err != nil {
		t.Errorf("Admit of records without data: %v", err)
	}
	f.st.away.Store(false)
	f.commit(last, "c") // its cut makes the rest of the log superfluous
	f.publish()
	if err := f.c.Admit(t.Context(), 1<<20); err != nil {
		t.Errorf("Admit after the log has been cut: %v", err)
	}
}

// TestWriterWaitsForSpace lets a publication free the space that a writer waits for.
func TestWriterWaitsForSpace(t *testing.T) {
	f := newFixture(t)
	f.o.Size, f.o.SpaceWait = 2<<20, 20*time.Second
	pressed := make(chan struct{}, 1)
	f.o.Pressure = func() {
		select {
		case pressed <- struct{}{}:
		default:
		}
	}
	f.open()
	var wg sync.WaitGroup
	wg.Go(func() {
		<-pressed
		f.commit([]chunk{f.add([]byte("x"))}, "w")
		f.publish()
	})
	for range 300 {
		if err := f.c.Admit(t.Context(), 8000); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.c.Log().Append(cache.FirstType, nil, randomBytes(f.rng, 8000)); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// TestCommitNeedsNoRoom makes a commit with chunks that lie nowhere in the log when writers have used up the budget: it is
// what they wait for.
func TestCommitNeedsNoRoom(t *testing.T) {
	f := newFixture(t)
	f.o.Size, f.o.SpaceWait = 2<<20, time.Millisecond
	f.open()
	var err error
	for err == nil {
		if err = f.c.Admit(t.Context(), 8000); err == nil {
			_, _, err = f.c.Log().Append(cache.FirstType, nil, randomBytes(f.rng, 8000))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the log: %v, want ENOSPC", err)
	}
	data := randomBytes(f.rng, 8000)
	id := f.repo.ChunkID(data)
	if _, err := f.c.AddChunk(t.Context(), id, data, nil); err != nil {
		t.Fatalf("AddChunk: %v", err)
	}
	f.commit([]chunk{{store.Ref{ID: id, Kind: store.RefChunk}, data}}, "n")
	f.publish()
	if err := f.c.Admit(t.Context(), 1<<20); err != nil {
		t.Errorf("Admit after the commit: %v", err)
	}
}

// TestFullSegment has the log's only segment take all the space there is. When nothing needs it any more it goes, although it
// is the one that is written to.
func TestFullSegment(t *testing.T) {
	f := newFixture(t)
	f.o.Size, f.o.Segment, f.o.SpaceWait = 2<<20, 2<<20, time.Millisecond
	f.open()
	for round := range 3 {
		var err error
		for err == nil {
			if err = f.c.Admit(t.Context(), 8000); err == nil {
				_, _, err = f.c.Log().Append(cache.FirstType, nil, randomBytes(f.rng, 8000))
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("filling the log: %v, want ENOSPC", err)
		}
		cut, salt, data := f.c.Log().End(), string(rune('a'+round)), randomBytes(f.rng, 100)
		id := f.repo.ChunkID(data)
		if _, err := f.c.AddChunk(t.Context(), id, data, nil); err != nil { // goes to the log, behind the cut
			t.Fatalf("AddChunk: %v", err)
		}
		lc := f.c.NewLocalCommit()
		root, err := save(t.Context(), lc, []chunk{{store.Ref{ID: id, Kind: store.RefChunk}, data}}, salt)
		if err == nil {
			err = lc.Finish(root, store.Ref{}, cut, []byte(salt))
		}
		if err != nil {
			t.Fatal(err)
		}
		f.publish()
		if err := f.c.Admit(t.Context(), 1<<20); err != nil {
			t.Fatalf("Admit after commit %d: %v", round, err)
		}
		if round == 1 {
			f.reopen() // finds the end of a log whose last segment is gone
		}
	}
}

// TestOneDownload has many readers of one multichunk.
func TestOneDownload(t *testing.T) {
	f := newFixture(t)
	f.open()
	chunks := f.addRandom(25, 8000) // one multichunk
	f.commit(chunks, "d")
	f.forget(f.publish())
	f.st.gets.Store(0)
	f.st.slow.Store(int64(20 * time.Millisecond))
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%5 == 0 {
				time.AfterFunc(5*time.Millisecond, cancel) // some give up
			}
			defer cancel()
			ck := chunks[i%len(chunks)]
			if got, err := f.c.Chunk(ctx, ck.ref); ctx.Err() == nil && (err != nil || !bytes.Equal(got, ck.data)) {
				t.Errorf("chunk %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := f.st.gets.Load(); n != 1 {
		t.Errorf("%d gets for 50 readers of one multichunk, want 1", n)
	}
}

// published makes a cache whose chunks lie on the remote and on the local disk alone.
func published(t *testing.T) (f *fixture, chunks []chunk, name store.Name) {
	f = newFixture(t)
	f.o.Now = f.now
	f.open()
	chunks = f.addRandom(25, 8000)
	f.commit(chunks, "p")
	f.forget(f.publish())
	for i := range chunks {
		chunks[i].ref.Hint = f.c.Hint(chunks[i].ref.ID)
	}
	return f, chunks, chunks[0].ref.Hint.Multichunk
}

// TestDamagedCopies spoils the file of a multichunk in several ways.
func TestDamagedCopies(t *testing.T) {
	f, chunks, name := published(t)
	f.check(f.c, chunks)
	file := cache.MultichunkFileForTest(name)
	whole, err := f.disk.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	for i := range flipped {
		flipped[i] ^= byte(i % 251)
	}
	for what, content := range map[string][]byte{
		"empty": {}, "zeros": make([]byte, len(whole)), "short": whole[:len(whole)/3], "foreign": []byte("hello"),
		"flipped": flipped, "long": append(flipped, whole...), "head only": append(whole[:200:200], make([]byte, len(whole)-200)...),
	} {
		t.Run(what, func(t *testing.T) {
			if err := f.disk.Replace(file, content); err != nil {
				t.Fatal(err)
			}
			f.c.DropMemoryForTest()
			f.st.gets.Store(0)
			f.check(f.c, chunks)
			if n := f.st.gets.Load(); n != 1 {
				t.Errorf("%d gets, want 1", n)
			}
			f.c.DropMemoryForTest()
			f.check(f.c, chunks)
			if n := f.st.gets.Load(); n != 1 {
				t.Errorf("%d gets after the copy was replaced, want 1", n)
			}
		})
	}
}

// TestDamagedRemote spoils the object itself: the error names it, comes at once
// the second time, and goes when the object is good again.
func TestDamagedRemote(t *testing.T) {
	f, chunks, name := published(t)
	object := store.ObjectName(name)
	good, ok := f.mem.Object(object)
	if !ok {
		t.Fatalf("no object %s", object)
	}
	bad := bytes.Clone(good)
	for i := 100; i < len(bad); i += 1000 {
		bad[i] ^= 1
	}
	replace := func(b []byte) {
		t.Helper()
		if err := f.mem.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if err := f.mem.Put(t.Context(), object, b); err != nil {
			t.Fatal(err)
		}
	}
	replace(bad)
	f.st.gets.Store(0)
	_, err := f.c.Chunk(t.Context(), chunks[0].ref)
	if !errors.Is(err, store.ErrCorrupt) || !bytes.Contains([]byte(err.Error()), []byte(name.String())) {
		t.Fatalf("Chunk = %v, want ErrCorrupt that names multichunk %v", err, name)
	}
	n := f.st.gets.Load()
	if n > 10 {
		t.Errorf("%d gets for a damaged object, want 2 of it and a few to look for its chunks elsewhere", n)
	}
	if _, err := f.c.Chunk(t.Context(), chunks[0].ref); !errors.Is(err, store.ErrCorrupt) || f.st.gets.Load() != n {
		t.Errorf("Chunk = %v after %d gets, want ErrCorrupt at once", err, f.st.gets.Load())
	}
	if dup, err := f.c.AddChunk(t.Context(), chunks[1].ref.ID, chunks[1].data, nil); dup || err != nil {
		t.Errorf("AddChunk of a lost chunk = %v, %v; want it stored again", dup, err)
	}
	f.check(f.c, chunks[1:2])
	replace(good)
	f.later.Store(int64(time.Minute))
	f.check(f.c, chunks)
}

// TestMissingRemote heals what was lost by writing it again.
func TestMissingRemote(t *testing.T) {
	f, chunks, name := published(t)
	if err := f.mem.Delete(t.Context(), store.ObjectName(name)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.c.Chunk(t.Context(), chunks[0].ref); !errors.Is(err, remote.ErrNotExist) {
		t.Fatalf("Chunk = %v, want ErrNotExist", err)
	}
	again := f.add(chunks[0].data)
	f.commit([]chunk{again}, "h")
	f.publish()
	f.c.DropMemoryForTest()
	f.check(f.c, chunks[:1])
}

func TestAdoptBase(t *testing.T) {
	f := newFixture(t)
	f.open()
	chunks := f.addRandom(20, 3000)
	f.commit(chunks, "mine")
	p := f.publish()
	other := &fixture{t: t, rng: f.rng, repo: f.repo, disk: cachetest.NewDisk(0), o: f.o}
	other.o.Files = other.disk
	other.open()
	if err := other.c.AdoptBase(p.Root, store.Ref{}); err != nil {
		t.Fatal(err)
	}
	other.reopen()
	root, _, _, _, n, isPublished, ok := other.c.LastCommit()
	if root != p.Root || n != 1 || !isPublished || !ok {
		t.Errorf("LastCommit = %v, %d, %v, %v", root, n, isPublished, ok)
	}
	f.checkTree(other.c, root, chunks, "mine")
	if _, err := other.c.LocalNode(store.Ref{ID: store.ID{1}}); !errors.Is(err, cache.ErrNotLocal) {
		t.Errorf("LocalNode of nothing = %v, want ErrNotLocal", err)
	}
}

// TestDamagedLog spoils the bytes of chunks in the log: those that are on the
// remote come from there, those that are not are reported.
func TestDamagedLog(t *testing.T) {
	f := newFixture(t)
	f.open()
	stored := append(f.addRandom(10, 8000), f.add(randomBytes(f.rng, 100_000)))
	f.commit(stored, "l")
	f.publish()
	f.st.away.Store(true)
	pending := f.add(randomBytes(f.rng, 8000))
	list, err := f.disk.List("log")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range list {
		f.disk.Spoil("log/"+info.Name, 64)
	}
	f.st.away.Store(false)
	f.c.DropMemoryForTest()
	f.checkBulk(f.c, stored)
	f.c.DropMemoryForTest()
	f.check(f.c, stored)
	if n := f.c.Fetched(); n == 0 {
		t.Error("nothing was fetched: the log was not damaged")
	}
	if _, err := f.c.Chunk(t.Context(), pending.ref); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Chunk whose only copy is damaged = %v, want ErrCorrupt", err)
	}
	if err := f.c.ReadChunks(t.Context(), wanted([]chunk{pending})); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("ReadChunks of it = %v, want ErrCorrupt", err)
	}
}

// TestChunkWithoutPlace stores chunks whose bytes lie nowhere in the log.
func TestChunkWithoutPlace(t *testing.T) {
	f := newFixture(t)
	f.st.away.Store(true)
	f.open()
	var chunks []chunk
	for range 20 {
		data := randomBytes(f.rng, 4000)
		id := f.repo.ChunkID(data)
		if dup, err := f.c.AddChunk(t.Context(), id, data, nil); dup || err != nil {
			t.Fatalf("AddChunk = %v, %v", dup, err)
		}
		chunks = append(chunks, chunk{store.Ref{ID: id}, data})
	}
	root := f.commit(chunks, "n")
	f.reopen()
	f.checkTree(f.c, root, chunks, "n")
	f.st.away.Store(false)
	p := f.publish()
	f.checkTree(f.reader(), p.Root, chunks, "n")
}

// TestWrongHint sends readers to other groups and multichunks.
func TestWrongHint(t *testing.T) {
	f, chunks, _ := published(t)
	for name, h := range map[string]store.Hint{
		"other group": chunks[20].ref.Hint,
		"no group":    {Multichunk: chunks[0].ref.Hint.Multichunk, Off: 77, Len: 99},
	} {
		ref := chunks[0].ref
		ref.Hint = h
		r := f.reader()
		got, err := r.Chunk(t.Context(), ref)
		if err != nil || !bytes.Equal(got, chunks[0].data) {
			t.Errorf("%s: Chunk = %v", name, err)
		}
	}
	f.check(f.c, chunks)
}
