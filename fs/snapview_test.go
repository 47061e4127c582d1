package fs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// names lists a directory.
func (e *env) names(dir Ino) []string {
	e.t.Helper()
	var names []string
	err := e.v.Readdir(ctx, dir, 2, true, func(d DirEntry) bool {
		names = append(names, string(d.Name))
		return true
	})
	if err != nil {
		e.t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func (e *env) mkdir(dir Ino, name string) Ino {
	e.t.Helper()
	a, err := e.v.Mkdir(ctx, dir, []byte(name), 0o755, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	return a.Ino
}

func (e *env) snapshot(name string) {
	e.t.Helper()
	if _, err := e.v.CreateSnapshot(ctx, Snapshot{Name: name}); err != nil {
		e.t.Fatal(err)
	}
}

// fill writes a file in a directory.
func (e *env) fill(dir Ino, name, data string) {
	e.t.Helper()
	_, h, err := e.v.Create(ctx, dir, []byte(name), syscall.O_RDWR|syscall.O_TRUNC, 0o644, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer h.Release()
	if _, err := h.Write(ctx, []byte(data), 0); err != nil {
		e.t.Fatal(err)
	}
}

// TestSnapshotsInDirectories looks at the snapshots from directories that were renamed, made anew, and not there yet.
func TestSnapshotsInDirectories(t *testing.T) {
	e := newEnv(t)
	now := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	e.opt.Now = func() time.Time { return now }
	e.reopen()
	d := e.mkdir(Root, "d")
	sub := e.mkdir(d, "sub")
	e.fill(sub, "f", "one")
	e.snapshot("one")
	now = now.Add(time.Hour)
	e.fill(sub, "f", "two")
	if err := e.v.Rename(ctx, d, []byte("sub"), Root, []byte("moved"), 0); err != nil {
		t.Fatal(err)
	}
	e.mkdir(d, "sub") // another one under the old name
	e.mkdir(Root, "new")
	e.snapshot("two")

	for path, want := range map[string]string{
		"/moved/.snapshots/one/f":                  "one",
		"/moved/.snapshots/two/f":                  "two",
		"/moved/.snapshots/latest/f":               "two",
		"/moved/.snapshots/2001-02-03T04-05-06Z/f": "one",
		"/d/.snapshots/one/sub/f":                  "one",
		"/d/sub/.snapshots/one/f":                  "one", // by its path: the number is a new one
		"/.snapshots/one/d/sub/f":                  "one",
		"/.snapshots/two/moved/f":                  "two",
	} {
		if got := string(e.read(strings.Split(path[1:], "/")...)); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string][]string{
		"":       {"2001-02-03T04-05-06Z", "2001-02-03T05-05-06Z", "latest", "one", "two"},
		"/moved": {"2001-02-03T04-05-06Z", "2001-02-03T05-05-06Z", "latest", "one", "two"},
		"/new":   {"2001-02-03T05-05-06Z", "latest", "two"},
	} {
		dir := e.walk(strings.FieldsFunc(path+"/.snapshots", func(r rune) bool { return r == '/' })...)
		if got := e.names(dir); !slices.Equal(got, want) {
			t.Errorf("snapshots in %s: %q, want %q", path, got, want)
		}
	}
	if got := e.names(e.walk("moved")); !slices.Equal(got, []string{"f"}) {
		t.Errorf("a listing shows %q", got)
	}
	for _, path := range []string{"new/.snapshots/one", "moved/.snapshots/one/.snapshots"} {
		at := strings.Split(path, "/")
		dir := e.walk(at[:len(at)-1]...)
		if _, err := e.v.Lookup(ctx, dir, []byte(at[len(at)-1])); err != syscall.ENOENT {
			t.Errorf("look up %s: %v", path, err)
		}
	}
}

// TestSnapshotsHidden makes a real entry of the name of the virtual directory, which hides it but in the root.
func TestSnapshotsHidden(t *testing.T) {
	e := newEnv(t)
	d := e.mkdir(Root, "d")
	e.snapshot("one")
	real := e.mkdir(d, ".snapshots")
	e.fill(real, "f", "real")
	if got := string(e.read("d", ".snapshots", "f")); got != "real" {
		t.Errorf("the real directory has %q", got)
	}
	if got := e.names(d); !slices.Equal(got, []string{".snapshots"}) {
		t.Errorf("listing: %q", got)
	}
	if err := e.v.Unlink(ctx, real, []byte("f")); err != nil {
		t.Fatal(err)
	}
	if err := e.v.Rmdir(ctx, d, []byte(".snapshots")); err != nil {
		t.Fatal(err)
	}
	if !isSnapshotIno(e.walk("d", ".snapshots")) {
		t.Error("the virtual directory does not come back")
	}
	if err := e.v.Rmdir(ctx, Root, []byte("d")); err != nil {
		t.Errorf("remove a directory with nothing in it: %v", err)
	}
	for _, op := range []func() error{
		func() error { _, err := e.v.Mkdir(ctx, Root, []byte(".snapshots"), 0o755, Cred{}); return err },
		func() error { return e.v.Rename(ctx, Root, []byte(".snapshots"), Root, []byte("x"), 0) },
	} {
		if err := op(); err != syscall.EEXIST && err != syscall.EPERM {
			t.Errorf("the name in the root: %v", err)
		}
	}
	e.opt.SnapshotsRootOnly = true
	e.reopen()
	d = e.mkdir(Root, "d")
	if _, err := e.v.Lookup(ctx, d, []byte(".snapshots")); err != syscall.ENOENT {
		t.Errorf("where it is switched off: %v", err)
	}
}

// TestSnapshotInodes pins that numbers in views hold over a remount, and that no directory has two places.
func TestSnapshotInodes(t *testing.T) {
	e := newEnv(t)
	d := e.mkdir(Root, "d")
	e.fill(d, "f", "data")
	if _, err := e.v.Link(ctx, e.walk("d", "f"), d, []byte("g")); err != nil {
		t.Fatal(err)
	}
	e.snapshot("one")
	paths := []string{".snapshots", ".snapshots/one", ".snapshots/one/d", ".snapshots/latest/d", "d/.snapshots", "d/.snapshots/one"}
	numbers := func() map[string]Ino {
		all := map[string]Ino{}
		for _, p := range append(paths, ".snapshots/one/d/f", ".snapshots/one/d/g") {
			all[p] = e.walk(strings.Split(p, "/")...)
		}
		return all
	}
	before := numbers()
	e.reopen()
	if after := numbers(); !maps.Equal(before, after) {
		t.Errorf("numbers change: %v, %v", before, after)
	}
	seen := map[Ino]string{}
	for _, p := range paths {
		if other, twice := seen[before[p]]; twice {
			t.Errorf("%s and %s have one number", p, other)
		}
		seen[before[p]] = p
	}
	if before[".snapshots/one/d/f"] != before[".snapshots/one/d/g"] {
		t.Error("two names of one file have two numbers")
	}
	e.v.Readdir(ctx, e.walk(".snapshots", "one"), 0, false, func(d DirEntry) bool {
		if d.Name[0] != '.' && d.Ino != before[".snapshots/one/d"] {
			t.Errorf("the listing gives %q the number %x", d.Name, d.Ino)
		}
		return true
	})
}

// TestSnapshotsReadOnly tries all that changes something in a view.
func TestSnapshotsReadOnly(t *testing.T) {
	e := newEnv(t)
	d := e.mkdir(Root, "d")
	e.fill(d, "f", "data")
	e.snapshot("one")
	for _, path := range []string{".snapshots/one/d", "d/.snapshots/one", "d/.snapshots"} {
		dir := e.walk(strings.Split(path, "/")...)
		_, mk := e.v.Mkdir(ctx, dir, []byte("x"), 0o755, Cred{})
		_, _, create := e.v.Create(ctx, dir, []byte("x"), syscall.O_RDWR, 0o644, Cred{})
		_, attr := e.v.Setattr(ctx, dir, nil, SetAttr{MtimeNow: true}, Cred{})
		for i, err := range []error{mk, create, attr,
			e.v.Unlink(ctx, dir, []byte("f")), e.v.Rmdir(ctx, dir, []byte("f")),
			e.v.Rename(ctx, dir, []byte("f"), Root, []byte("f"), 0), e.v.Rename(ctx, Root, []byte("d"), dir, []byte("f"), 0),
			e.v.Setxattr(ctx, dir, "user.x", []byte("x"), 0), e.v.Removexattr(ctx, dir, "user.x"),
		} {
			if !errors.Is(err, syscall.EROFS) {
				t.Errorf("%s: operation %d: %v, want EROFS", path, i, err)
			}
		}
	}
}

// TestSnapshotNamesBySecond makes snapshots in one second, and one whose name is another's time.
func TestSnapshotNamesBySecond(t *testing.T) {
	at := func(ns int) time.Time { return time.Date(2001, 2, 3, 4, 5, 6, ns, time.UTC) }
	l := &snapshotList{snaps: []Snapshot{{Name: "a", Time: at(1)}, {Name: "b", Time: at(2)},
		{Name: "2001-02-03T04-05-07Z", Time: at(0).Add(-time.Hour)}, {Name: "c", Time: at(0).Add(time.Second)}}}
	l.enterAll(func(string) uint64 { return 128 })
	for name, want := range map[string]string{
		"2001-02-03T04-05-06Z": "a", "2001-02-03T04-05-06.000000002Z": "b",
		"2001-02-03T04-05-07Z": "2001-02-03T04-05-07Z", "2001-02-03T04-05-07.000000000Z": "c", "latest": "c",
	} {
		if s := l.find(name); s == nil || s.Name != want {
			t.Errorf("%s leads to %v, want %s", name, s, want)
		}
	}
	for i, n := range l.byCookie {
		if n.cookie != 128+uint64(i) || l.from(n.cookie) != i {
			t.Errorf("name %d has cookie %d", i, n.cookie)
		}
	}
}

// TestSnapshotsListing lists while snapshots come and go: what is there all the time is there exactly once.
func TestSnapshotsListing(t *testing.T) {
	e := newEnv(t)
	e.opt.Now = func() time.Time { return time.Unix(1e9, 0) }
	e.reopen()
	for i := range 300 {
		e.snapshot(fmt.Sprint("s", i))
	}
	seen := map[string]int{}
	step := 0
	for cookie, more := uint64(2), true; more; {
		more = false
		err := e.v.Readdir(ctx, e.walk(".snapshots"), cookie, false, func(d DirEntry) bool {
			seen[string(d.Name)]++
			cookie, more = d.Cookie, true
			step++
			return step%50 != 0
		})
		if err != nil {
			t.Fatal(err)
		}
		if more {
			e.snapshot(fmt.Sprint("new", step))
			if err := e.v.ForgetSnapshot(ctx, fmt.Sprint("s", step%300)); err != nil && !errors.Is(err, syscall.ENOENT) {
				t.Fatal(err)
			}
		}
	}
	snaps, err := e.v.Snapshots(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snaps {
		if n := seen[s.Name]; s.Name[0] == 's' && n != 1 {
			t.Errorf("%s is listed %d times", s.Name, n)
		}
	}
}

// TestSnapshotOpensLazily opens one file of an old snapshot of a volume that this machine has never seen, and counts what it
// reads from the remote for that.
func TestSnapshotOpensLazily(t *testing.T) {
	e := newEnv(t)
	for i := range 40 {
		d := e.mkdir(Root, fmt.Sprint("d", i))
		for j := range 50 {
			e.fill(d, fmt.Sprint("f", j), fmt.Sprint(i, j))
		}
	}
	e.snapshot("old")
	for i := range 40 {
		e.fill(e.walk(fmt.Sprint("d", i)), "f0", "changed")
	}
	e.sync()
	o := e.other()
	before := o.ca.Fetched()
	if got := string(o.read(".snapshots", "old", "d20", "f7")); got != "20 7" {
		t.Errorf("read %q", got)
	}
	n := o.ca.Fetched() - before
	t.Logf("%d bytes fetched", n)
	if n == 0 || n > 256<<10 {
		t.Errorf("opening one file fetched %d bytes", n)
	}
}

// TestSnapshotPinned opens a volume at a snapshot, by its names and by times.
func TestSnapshotPinned(t *testing.T) {
	a := newEnv(t)
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	a.opt.Now = func() time.Time { return now }
	a.reopen()
	for _, name := range []string{"one", "two"} {
		a.overwrite("f", name)
		a.snapshot(name)
		now = now.Add(48 * time.Hour)
	}
	a.overwrite("f", "now")
	a.sync()
	for spec, want := range map[string]string{
		"one": "one", "two": "two", "latest": "two", "2001-02-03T04-05-06Z": "one", "2001-02-04": "one",
		"2001-02-05T04:05:05Z": "one", "2001-02-05T04:05:06Z": "two", "2026-01-01 00:00": "two",
		"none": "", "2000-01-01": "",
	} {
		o := &env{t: t, st: a.st, disk: cachetest.NewDisk(0), opt: a.opt}
		o.opt.Snapshot = spec
		repo := storetest.Open(t, a.st)
		ca, err := cache.Open(ctx, "", repo, &cache.Options{Files: o.disk})
		if err != nil {
			t.Fatal(err)
		}
		o.v, err = Open(ctx, ca, repo, &o.opt)
		switch {
		case want == "":
			if !errors.Is(err, ErrNoSnapshot) {
				t.Errorf("%s: %v", spec, err)
			}
		case err != nil:
			t.Errorf("%s: %v", spec, err)
		default:
			if got := string(o.read("f")); got != want {
				t.Errorf("%s: %q, want %q", spec, got, want)
			}
			if err := o.v.Unlink(ctx, Root, []byte("f")); err != syscall.EROFS {
				t.Errorf("unlink: %v", err)
			}
			o.sync()
			if got := string(o.read("f")); got != want {
				t.Errorf("%s after sync: %q, want %q", spec, got, want)
			}
			o.v.Close(ctx)
		}
		ca.Close()
	}
}

// TestSnapshotsOfOneSecond makes several snapshots that nobody names within one second: each gets a name of its own.
func TestSnapshotsOfOneSecond(t *testing.T) {
	e := newEnv(t)
	now := time.Now()
	e.v.opt.Now = func() time.Time { return now }
	names := map[string]bool{}
	const n = 3
	for i := range n {
		e.write("f", 0, []byte{byte(i)})
		s, err := e.v.CreateSnapshot(t.Context(), Snapshot{})
		if err != nil {
			t.Fatal(err)
		}
		names[s.Name] = true
		if got := e.read(".snapshots", s.Name, "f"); got[0] != byte(i) {
			t.Errorf("snapshot %s has %d, want %d", s.Name, got[0], i)
		}
	}
	if len(names) != n {
		t.Errorf("names %v, want %d", names, n)
	}
}
