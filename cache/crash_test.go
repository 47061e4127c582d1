package cache_test

import (
	"errors"
	"fmt"
	"path"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/store"
)

// history is what a test has made a client promise.
type history struct {
	commits []committed // in order
	acked   int         // number of the newest local commit that was acknowledged
}

type committed struct {
	root   store.Ref
	chunks []chunk
	salt   string
}

// step adds chunks and makes a local commit of them, or publishes; it tells what failed.
func (h *history) step(f *fixture) error {
	if f.rng.IntN(4) == 0 && h.acked > 0 {
		p, err := f.c.PackForPublication(f.t.Context(), nil)
		if err != nil || p == nil || f.rng.IntN(4) == 0 {
			return err
		}
		return f.c.Published(p)
	}
	var chunks []chunk
	if n := len(h.commits); n > 0 && f.rng.IntN(2) == 0 {
		chunks = append(chunks, h.commits[n-1].chunks...)
	}
	for range 1 + f.rng.IntN(12) {
		ck, err := f.tryAdd(randomBytes(f.rng, 1+f.rng.IntN(9000)))
		if err != nil {
			return err
		}
		chunks = append(chunks, ck)
	}
	salt := fmt.Sprint(len(h.commits))
	root, err := f.tryCommit(chunks, salt)
	// What was not acknowledged may be there all the same.
	h.commits = append(h.commits, committed{root, chunks, salt})
	if err == nil {
		h.acked = len(h.commits)
	}
	return err
}

// verify opens what was left on a disk: the newest acknowledged commit, or a later one, must be there as a whole.
func (h *history) verify(f *fixture, disk *cachetest.Disk) {
	f.t.Helper()
	g := &fixture{t: f.t, rng: f.rng, mem: f.mem, st: f.st, repo: f.repo, disk: disk, o: f.o}
	g.o.Files = disk
	g.open()
	defer g.close()
	root, _, _, meta, _, _, ok := g.c.LastCommit()
	if !ok && h.acked == 0 {
		return
	}
	for i := max(h.acked-1, 0); i < len(h.commits); i++ {
		c := h.commits[i]
		if c.root.ID == root.ID && string(meta) == c.salt {
			g.checkTree(g.c, root, c.chunks, c.salt)
			g.checkPublish(c)
			return
		}
	}
	f.t.Fatalf("last commit is %q, want %d or later of %d", meta, h.acked, len(h.commits))
}

// checkPublish publishes what is there, and compares with the remote alone.
func (f *fixture) checkPublish(c committed) {
	f.t.Helper()
	p, err := f.c.PackForPublication(f.t.Context(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	root, _, _, _, _, _, _ := f.c.LastCommit()
	if p != nil {
		root = p.Root
	}
	f.checkTree(f.reader(), root, c.chunks, c.salt)
}

// TestPowerCut cuts the power of a client at random moments.
func TestPowerCut(t *testing.T) {
	runs := 15
	if long {
		runs = 1500
	}
	for range runs {
		f := newFixture(t)
		f.open()
		h := &history{}
		for range 8 {
			if err := h.step(f); err != nil {
				t.Fatal(err)
			}
			h.verify(f, f.disk.PowerCut(f.rng))
		}
		f.close()
	}
}

// TestEveryOperationFails lets the local disk fail at every operation in turn.
func TestEveryOperationFails(t *testing.T) {
	stride := 7
	if long {
		stride = 1
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EROFS} {
		for _, forever := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/%v", errno, forever), func(t *testing.T) {
				hits := 0
				for i := 1; ; i += stride {
					hit := failAt(t, i, errno, forever)
					if hit == 0 {
						break
					}
					hits++
				}
				if hits < 5 {
					t.Errorf("only %d operations were made to fail", hits)
				}
			})
		}
	}
}

func failAt(t *testing.T, i int, errno syscall.Errno, forever bool) (hit int) {
	f := newFixture(t)
	faults := cachetest.NewFaults(f.disk)
	f.o.Files = faults
	f.open()
	h := &history{}
	faults.FailAt(i, errno, forever)
	for range 6 {
		if err := f.stepUnderFault(h, faults); err != nil && !errors.Is(err, errno) {
			t.Fatalf("operation %d: %v, want %v", i, err, errno)
		}
	}
	h.verify(f, f.disk.PowerCut(f.rng))
	hit = faults.Hit()
	faults.Heal()
	if err := h.step(f); err != nil {
		t.Fatalf("operation %d failed and works again: %v", i, err)
	}
	h.verify(f, f.disk.PowerCut(f.rng))
	f.close()
	return hit
}

// stepUnderFault is a step that does not wait for an upload that cannot end
// while the disk fails for ever.
func (f *fixture) stepUnderFault(h *history, faults *cachetest.Faults) error {
	ctx, cancel := contextWithTimeout(f.t)
	defer cancel()
	if f.rng.IntN(4) == 0 && h.acked > 0 {
		p, err := f.c.PackForPublication(ctx, nil)
		if ctx.Err() != nil || err != nil || p == nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		return f.c.Published(p)
	}
	var chunks []chunk
	for range 1 + f.rng.IntN(6) {
		ck, err := f.tryAdd(randomBytes(f.rng, 1+f.rng.IntN(9000)))
		if err != nil {
			return err
		}
		chunks = append(chunks, ck)
	}
	salt := fmt.Sprint(len(h.commits))
	root, err := f.tryCommit(chunks, salt)
	h.commits = append(h.commits, committed{root, chunks, salt})
	if err == nil {
		h.acked = len(h.commits)
	}
	return err
}

// TestLocalFilesCutShort cuts each local file at every byte of its last 4 KiB: the
// cache opens with the right state, or says that a file is damaged.
func TestLocalFilesCutShort(t *testing.T) {
	f := newFixture(t)
	f.o.InFlight = 512 << 10
	f.open()
	chunks := f.addRandom(30, 3000)
	f.commit(chunks, "first")
	p, err := f.c.PackForPublication(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.st.away.Store(true)
	chunks = append(chunks, f.addRandom(300, 3000)...) // some of it goes to the spool
	root := f.commit(chunks, "second")
	if err := f.c.Published(p); err != nil {
		t.Fatal(err)
	}
	if err := f.c.SaveState(cache.State{Client: store.ClientID{1}, Host: "here"}); err != nil {
		t.Fatal(err)
	}
	f.close()
	seen := map[string]int{}
	for _, dir := range []string{".", "log", "local", "spool", "uploaded"} {
		list, err := f.disk.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range list {
			if !info.Dir && seen[dir] < 4 {
				seen[dir]++
				f.cutShort(path.Join(dir, info.Name), root, chunks)
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("only files of %v were there", seen)
	}
}

func (f *fixture) cutShort(name string, root store.Ref, chunks []chunk) {
	f.t.Helper()
	whole, err := f.disk.Read(name)
	if err != nil {
		f.t.Fatal(err)
	}
	step := max(1, min(len(whole), 4<<10)/12)
	if long {
		step = 1
	}
	for cut := 1; cut <= min(len(whole), 4<<10); cut += step {
		disk := f.disk.Clone()
		if err := disk.Replace(name, whole[:len(whole)-cut]); err != nil {
			f.t.Fatal(err)
		}
		o := f.o
		o.Files = disk
		c, err := cache.Open(f.t.Context(), "", f.repo, &o)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				f.t.Fatalf("%s without its last %d bytes: %v", name, cut, err)
			}
			continue
		}
		got, _, _, meta, _, _, _ := c.LastCommit()
		if got.ID != root.ID || string(meta) != "second" {
			f.t.Fatalf("%s without its last %d bytes: last commit is %q", name, cut, meta)
		}
		if err := f.tryTree(c, root, chunks, "second"); err != nil && !lostHonestly(err) {
			f.t.Fatalf("%s without its last %d bytes: %v", name, cut, err)
		}
		c.Close()
	}
}

// lostHonestly reports whether err says that bytes are gone.
func lostHonestly(err error) bool {
	return errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrNotFound) || errors.Is(err, errAway)
}
