package fs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand"
	randv2 "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// listing returns what a volume shows: paths and contents.
func (e *env) listing() map[string]string {
	e.t.Helper()
	all := map[string]string{}
	e.listDir(Root, "", all)
	return all
}

func (e *env) listDir(dir Ino, path string, all map[string]string) {
	e.t.Helper()
	err := e.v.Readdir(ctx, dir, 2, true, func(d DirEntry) bool {
		p := path + "/" + string(d.Name)
		switch d.Type {
		case syscall.S_IFDIR:
			all[p] = fmt.Sprintf("dir %o nlink %d", d.Attr.Mode, d.Attr.Nlink)
			e.listDir(d.Ino, p, all)
		case syscall.S_IFREG:
			all[p] = fmt.Sprintf("%q %o nlink %d", readIno(e.t, e.v, d.Ino), d.Attr.Mode, d.Attr.Nlink)
		default:
			all[p] = fmt.Sprintf("mode %o", d.Attr.Mode)
		}
		return true
	})
	if err != nil {
		e.t.Fatal(err)
	}
}

// agree lets clients follow each other until nothing is new, and fails if they do not show the same then.
func agree(t *testing.T, clients ...*env) map[string]string {
	t.Helper()
	for range 3 {
		for _, c := range clients {
			c.sync()
		}
	}
	want := clients[0].listing()
	for _, c := range clients {
		if got := c.listing(); !maps.Equal(got, want) {
			t.Fatalf("clients differ:\n%v\n%v", got, want)
		}
		if s := c.v.Status(ctx); s.Behind || s.Unpublished {
			t.Errorf("status after agreeing: %+v", s)
		}
		if c.v.base.Root().ID != clients[0].v.base.Root().ID {
			t.Error("the trees of two clients differ")
		}
	}
	return want
}

// commits counts the commits on the remote.
func (e *env) commits() int {
	n := 0
	for _, name := range e.st.Names() {
		if strings.HasPrefix(name, "commits/") {
			n++
		}
	}
	return n
}

func (e *env) overwrite(name, data string) {
	e.t.Helper()
	_, h, err := e.v.Create(ctx, Root, []byte(name), syscall.O_RDWR|syscall.O_TRUNC, 0o644, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer h.Release()
	if _, err := h.Write(ctx, []byte(data), 0); err != nil {
		e.t.Fatal(err)
	}
}

func TestFollow(t *testing.T) {
	a := newEnv(t)
	a.overwrite("both", "base")
	a.overwrite("gone", "base")
	a.sync()
	b := a.other()
	if got := string(b.read("both")); got != "base" {
		t.Fatalf("a new client reads %q", got)
	}

	a.overwrite("both", "from a")
	a.overwrite("mine", "from a")
	b.overwrite("both", "from b")
	b.overwrite("theirs", "from b")
	if err := b.v.Unlink(ctx, Root, []byte("gone")); err != nil {
		t.Fatal(err)
	}
	before := a.commits()
	all := agree(t, a, b)
	if n := a.commits() - before; n > 3 {
		t.Errorf("%d commits, want one for each side and one that merges", n)
	}
	var contents []string
	for p, c := range all {
		if strings.Contains(p, "both") {
			contents = append(contents, c)
		}
	}
	slices.Sort(contents)
	conflicts, err := b.v.Conflicts(ctx)
	if err != nil || len(conflicts) != 1 || all[conflicts[0].Path] == "" {
		t.Errorf("conflicts: %v, %v", conflicts, err)
	}
	if len(all) != 4 || len(contents) != 2 || !strings.Contains(contents[0], "from a") || !strings.Contains(contents[1], "from b") {
		t.Errorf("merged: %v", all)
	}
	if n := a.v.Status(ctx).Conflicts; n != 1 {
		t.Errorf("status counts %d conflicts", n)
	}
	before = a.commits()
	agree(t, a, b)
	if n := a.commits() - before; n != 0 {
		t.Errorf("%d commits although nothing has changed", n)
	}
	c := a.other()
	agree(t, a, b, c)
	for _, e := range []*env{a, b, c} {
		e.reopen()
	}
	agree(t, a, b, c)
}

// TestFollowBound has several clients change the same and other files at once, and bounds the rounds and commits.
func TestFollowBound(t *testing.T) {
	r := newRand(t)
	clients := []*env{newEnv(t)}
	for range 2 {
		clients = append(clients, clients[0].other())
	}
	for round := range 8 {
		for i, c := range clients {
			for range 1 + r.Intn(4) {
				c.overwrite(fmt.Sprint("f", r.Intn(4)), fmt.Sprint(round, i, r.Int()))
			}
			if r.Intn(2) == 0 {
				c.v.Rename(ctx, Root, fmt.Append(nil, "f", r.Intn(4)), Root, fmt.Append(nil, "f", r.Intn(6)), 0)
			}
		}
		for _, c := range clients { // everybody publishes without a look at the others
			if err := c.v.syncOwn(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		before := clients[0].commits()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				if err := c.v.Sync(ctx, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		agree(t, clients...)
		if n := clients[0].commits() - before; n > 2*len(clients) {
			t.Errorf("%d clients made %d commits to agree", len(clients), n)
		}
	}
}

// TestFollowOpen follows a change of a file that is open here.
func TestFollowOpen(t *testing.T) {
	a := newEnv(t)
	a.overwrite("f", "old")
	a.sync()
	b := a.other()
	ino := b.walk("f")
	open := func(flags uint32) *Handle {
		h, err := b.v.Open(ctx, ino, flags, Cred{})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := open(syscall.O_RDONLY)
	a.overwrite("f", "new and longer")
	a.sync()
	b.sync()
	buf := make([]byte, 100)
	if n, err := h.Read(ctx, buf, 0); string(buf[:n]) != "old" || err != nil {
		t.Errorf("who has opened the file before reads %q, %v", buf[:n], err)
	}
	if got := string(b.read("f")); got != "new and longer" {
		t.Errorf("who opens it now reads %q", got)
	}
	h.Release()

	w := open(syscall.O_RDWR)
	a.overwrite("f", "again")
	a.sync()
	b.sync()
	if _, err := w.Write(ctx, []byte("A"), 0); err != nil {
		t.Fatal(err)
	}
	w.Release()
	agree(t, a, b)
	if got := string(a.read("f")); got != "Again" {
		t.Errorf("written through a handle opened before: %q", got)
	}
	b.reopen()
	if got := string(b.read("f")); got != "Again" {
		t.Errorf("after a restart: %q", got)
	}
}

// TestFollowBusy follows while files are being written here; nothing that either side has answered may be missing.
func TestFollowBusy(t *testing.T) {
	a := newEnv(t)
	a.sync()
	b := a.other()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	written := 0
	wg.Go(func() {
		for ; ; written++ {
			select {
			case <-stop:
				return
			default:
			}
			b.overwrite(fmt.Sprint("b", written), fmt.Sprint("content ", written))
			time.Sleep(2 * time.Millisecond)
		}
	})
	for i := range 15 {
		a.overwrite(fmt.Sprint("a", i), fmt.Sprint("content ", i))
		a.sync()
		b.sync()
	}
	followed := 0
	for name := range b.listing() {
		if strings.HasPrefix(name, "/a") {
			followed++
		}
	}
	close(stop)
	wg.Wait()
	if followed < 14 {
		t.Errorf("%d of 15 files of the other are shown while files are being written here", followed)
	}
	all := agree(t, a, b)
	if len(all) != written+15 || written == 0 {
		t.Errorf("%d files, want %d and 15", len(all), written)
	}
}

// TestFollowNeverPausing follows while several programs write here without any pause: each look at the others must get through.
func TestFollowNeverPausing(t *testing.T) {
	a := newEnv(t)
	a.sync()
	b := a.other()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var writes atomic.Int64
	var during int64 // writes while b followed
	for i := range 2 {
		_, h, err := b.v.Create(ctx, Root, fmt.Append(nil, "log", i), syscall.O_RDWR, 0o644, Cred{})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer h.Release()
			block := make([]byte, 4096)
			for off := int64(0); ; off++ {
				select {
				case <-stop:
					return
				default:
				}
				block[0] = byte(off)
				if _, err := h.Write(ctx, block, off%64*4096); err != nil {
					t.Error(err)
					return
				}
				writes.Add(1)
				time.Sleep(50 * time.Microsecond) // nothing is committed in so short a time
			}
		})
	}
	for i := range 6 {
		name := fmt.Sprint("a", i)
		a.overwrite(name, "content")
		a.sync()
		before := writes.Load()
		b.sync()
		if s := b.v.Status(ctx); s.Behind {
			t.Errorf("round %d: behind, while %d writes were made", i, writes.Load()-before)
		}
		if _, err := b.v.Lookup(ctx, Root, []byte(name)); err != nil {
			t.Errorf("round %d: %s: %v", i, name, err)
		}
		during += writes.Load() - before
	}
	close(stop)
	wg.Wait()
	if during < 100 {
		t.Errorf("only %d writes were made while others were followed", during)
	}
	agree(t, a, b)
}

// TestFollowPowerCut cuts the power of one client anywhere while both change files and follow each other.
func TestFollowPowerCut(t *testing.T) {
	r := newRand(t)
	a := newEnv(t)
	a.sync()
	b := a.other()
	want := map[string]string{}
	for i := range 12 {
		a.overwrite(fmt.Sprint("a", i), fmt.Sprint("a ", i))
		b.overwrite(fmt.Sprint("b", i), fmt.Sprint("b ", i))
		a.sync()
		if err := b.v.fsync(ctx, Root); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprint("a", i)], want[fmt.Sprint("b", i)] = fmt.Sprint("a ", i), fmt.Sprint("b ", i)
		b.cutPowerWithin(r)
	}
	agree(t, a, b)
	for name, data := range want {
		if got := b.read(name); !bytes.Equal(got, []byte(data)) {
			t.Errorf("%s: %q, want %q", name, got, data)
		}
	}
}

// cutPowerWithin cuts the power at some moment of a sync.
func (e *env) cutPowerWithin(r *rand.Rand) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.v.Sync(ctx, nil) // it waits for a remote that is gone, or fails
	}()
	time.Sleep(time.Duration(r.Intn(4000)) * time.Microsecond)
	e.wire.pulled.Store(true)
	after := e.disk.PowerCut(randv2.New(randv2.NewPCG(r.Uint64(), 0)))
	cancel()
	if err := e.v.Close(ctx); err != nil { // the background gives up too, so that the sync can
		e.t.Error(err)
	}
	<-done
	if err := e.ca.Close(); err != nil {
		e.t.Error(err)
	}
	e.disk = after
	e.open()
}

// TestFollowDamaged has one client's newest commit damaged: the others are followed all the same.
func TestFollowDamaged(t *testing.T) {
	a := newEnv(t)
	a.sync()
	b, c := a.other(), a.other()
	b.overwrite("b", "b")
	b.sync()
	st := b.ca.State()
	for _, name := range a.st.Names() {
		if strings.HasPrefix(name, "commits/"+st.Client.String()) {
			a.st.Damage(name, func(data []byte) []byte {
				data[len(data)/2] ^= 1
				return data
			})
		}
	}
	c.overwrite("c", "c")
	c.sync()
	a.sync()
	if got := string(a.read("c")); got != "c" {
		t.Errorf("c: %q", got)
	}
	s := a.v.Status(ctx)
	if len(s.Errors) == 0 {
		t.Error("nobody says that an object is damaged")
	}
}

// TestFollowUnlinked follows while a file without a name is open here.
func TestFollowUnlinked(t *testing.T) {
	a := newEnv(t)
	for _, name := range []string{"kept", "back"} {
		a.overwrite(name, "old")
	}
	a.sync()
	b := a.other()
	handles := map[string]*Handle{}
	for _, name := range []string{"kept", "back"} {
		h, err := b.v.Open(ctx, b.walk(name), syscall.O_RDWR, Cred{})
		if err != nil {
			t.Fatal(err)
		}
		handles[name] = h
		if err := b.v.Unlink(ctx, Root, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	a.overwrite("back", "edited elsewhere")
	a.overwrite("new", "new")
	a.sync()
	b.sync()
	for name, h := range handles {
		if _, err := h.Write(ctx, []byte("O"), 0); err != nil {
			t.Errorf("write to %s: %v", name, err)
		}
		buf := make([]byte, 100)
		if n, err := h.Read(ctx, buf, 0); string(buf[:n]) != "Old" || err != nil {
			t.Errorf("%s: %q, %v", name, buf[:n], err)
		}
	}
	b.sync()
	for _, h := range handles {
		h.Release()
	}
	all := agree(t, a, b)
	if len(all) != 2 || !strings.Contains(all["/back"], "edited elsewhere") {
		t.Errorf("merged: %v", all)
	}
	b.reopen()
	agree(t, a, b)
	n := 0
	err := a.v.view(ctx, func(r *layered) error {
		return r.scan(ctx, string(key(0, 0, 0)), inodeKey(Root), func(string, *store.Entry) bool { n++; return true })
	})
	if err != nil || n > 0 {
		t.Errorf("%d records of files without names are left, %v", n, err)
	}
}

// TestFollowHeld removes a file elsewhere that is open for writing here.
func TestFollowHeld(t *testing.T) {
	a := newEnv(t)
	a.overwrite("f", "old")
	a.sync()
	b := a.other()
	h, err := b.v.Open(ctx, b.walk("f"), syscall.O_RDWR, Cred{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.v.Unlink(ctx, Root, []byte("f")); err != nil {
		t.Fatal(err)
	}
	a.sync()
	b.sync()
	if !b.v.Status(ctx).Behind {
		t.Error("nobody says that something is not shown yet")
	}
	if _, err := h.Write(ctx, []byte("O"), 0); err != nil {
		t.Fatal(err)
	}
	agree(t, a, b)
	h.Release()
	if got := string(a.read("f")); got != "Old" {
		t.Errorf("what was written reads %q elsewhere", got)
	}
	if err := a.v.Unlink(ctx, Root, []byte("f")); err != nil {
		t.Fatal(err)
	}
	if all := agree(t, a, b); len(all) != 0 {
		t.Errorf("after the last handle was closed: %v", all)
	}
}
