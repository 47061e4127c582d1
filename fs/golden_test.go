package fs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// goldenDir holds a repository of each format version, and of what was added to one (v1a). They are written once and never edited: what a released version
// wrote, all later ones read (guarantee G16). MANIFEST says what is in it.
const goldenDir = "../store/testdata"

// TestGolden reads the golden repositories. With DEDUPFS_GOLDEN set it makes the one of a new format version.
func TestGolden(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(goldenDir, "v*"))
	if err != nil {
		t.Fatal(err)
	}
	if v := os.Getenv("DEDUPFS_GOLDEN"); v != "" {
		makeGolden(t, filepath.Join(goldenDir, v))
		return
	}
	if len(dirs) == 0 {
		t.Fatal("there is no golden repository")
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(dir, "MANIFEST"))
			if err != nil {
				t.Fatal(err)
			}
			st, err := remote.Open(ctx, filepath.Join(dir, "repository"), nil)
			if err != nil {
				t.Fatal(err)
			}
			repo := storetest.Open(t, st)
			v := openGolden(t, repo)
			if got := manifest(t, v); got != string(want) {
				t.Errorf("what is in the repository differs from its MANIFEST:\n%s", firstLineDiff(got, string(want)))
			}
			report, err := repo.Check(ctx, &store.CheckOptions{ReadData: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range report.Damages {
				t.Errorf("%s: %v", d.Object, d.Err)
			}
		})
	}
}

func firstLineDiff(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d: got  %s\n         want %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

func openGolden(t *testing.T, repo *store.Repository) *Volume {
	t.Helper()
	ca, err := cache.OpenReader(ctx, repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ca.Close() })
	v, err := Open(ctx, ca, repo, &Options{ReadOnly: true, Poll: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close(ctx) })
	return v
}

// manifest lists everything that the volume shows, snapshots too, a line each.
func manifest(t *testing.T, v *Volume) string {
	t.Helper()
	var b strings.Builder
	list(t, v, &b, Root, "")
	snaps, err := v.Snapshots(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := v.Lookup(ctx, Root, []byte(".snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snaps {
		fmt.Fprintf(&b, "snapshot %s %s %q %q\n", s.Name, s.Host, s.Message, s.Tags)
		a, err := v.Lookup(ctx, dir.Ino, []byte(s.Name))
		if err != nil {
			t.Fatal(err)
		}
		list(t, v, &b, a.Ino, "@"+s.Name)
	}
	return b.String()
}

func list(t *testing.T, v *Volume, b *strings.Builder, ino Ino, path string) {
	t.Helper()
	a, err := v.Getattr(ctx, ino, nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	fmt.Fprintf(b, "%q %o %d %d:%d %x %d.%d", path, a.Mode, a.Nlink, a.Uid, a.Gid, a.Rdev, a.Mtime.Sec, a.Mtime.Nsec)
	names, err := v.Listxattr(ctx, ino)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, name := range names {
		value, err := v.Getxattr(ctx, ino, name)
		if err != nil {
			t.Fatalf("%s: %s: %v", path, name, err)
		}
		fmt.Fprintf(b, " %s=%x", name, sha256.Sum256(value))
	}
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		fmt.Fprintf(b, " %d %d %x\n", a.Size, a.Blocks, sha256.Sum256(readIno(t, v, ino)))
	case syscall.S_IFLNK:
		target, err := v.Readlink(ctx, ino)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		fmt.Fprintf(b, " -> %q\n", target)
	case syscall.S_IFDIR:
		b.WriteByte('\n')
		var es []DirEntry
		if err := v.Readdir(ctx, ino, 2, false, func(e DirEntry) bool { es = append(es, e); return true }); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, e := range es {
			child, err := v.Lookup(ctx, ino, e.Name)
			if err != nil {
				t.Fatalf("%s/%s: %v", path, e.Name, err)
			}
			list(t, v, b, child.Ino, path+"/"+string(e.Name))
		}
	default:
		b.WriteByte('\n')
	}
}

// makeGolden makes a golden repository: every kind of record and object, from two clients.
func makeGolden(t *testing.T, dir string) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err) // never again over one that is there
	}
	st, err := remote.Open(ctx, filepath.Join(dir, "repository"), &remote.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	storetest.NewConfig(t, st, store.Config{MultichunkSize: 64 << 10, GroupSize: 16 << 10, SettleTime: store.NoSettleTime})
	fill(t, st, goldenFirst)
	fill(t, st, goldenSecond)
	fill(t, st, goldenThird)
	fill(t, st, func(e *env) { goldenCollect(e, st) })
	v := openGolden(t, storetest.Open(t, st))
	if err := os.WriteFile(filepath.Join(dir, "MANIFEST"), []byte(manifest(t, v)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fill opens the repository as a new client and lets it do something.
func fill(t *testing.T, st remote.Storage, do func(e *env)) {
	t.Helper()
	repo := storetest.Open(t, st)
	ca, err := cache.Open(ctx, t.TempDir(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Open(ctx, ca, repo, &Options{Poll: -1, Host: "golden", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, repo: repo, ca: ca, v: v}
	do(e)
	e.sync()
	e.close()
}

func goldenFirst(e *env) {
	must := func(_ any, err error) {
		e.t.Helper()
		if err != nil {
			e.t.Fatal(err)
		}
	}
	r := rand.New(rand.NewSource(1))
	random := make([]byte, 200_000)
	r.Read(random)
	text := bytes.Repeat([]byte("all work and no play makes jack a dull boy\n"), 4000)
	pages := make([]byte, 96<<10)
	copy(pages, "SQLite format 3\x00\x10\x00")
	for i := 4096; i < len(pages); i += 4096 {
		r.Read(pages[i : i+300])
	}
	e.write("random", 0, random)
	e.write("text", 0, text)
	e.write("pages", 0, pages)
	e.write("sparse", 1<<30, []byte("behind a hole"))
	e.write("zeros", 0, make([]byte, 100_000))
	e.write("empty", 0, nil)
	e.write("bad\xff\xfename", 0, []byte("any bytes"))
	must(e.v.Symlink(ctx, Root, []byte("link"), []byte("text"), Cred{}))
	must(e.v.Symlink(ctx, Root, []byte("long link"), bytes.Repeat([]byte("x/"), 1500), Cred{}))
	must(e.v.Link(ctx, e.walk("text"), Root, []byte("text too")))
	must(e.v.Mknod(ctx, Root, []byte("fifo"), syscall.S_IFIFO|0o640, 0, Cred{Uid: 4294967294, Gid: 7}))
	must(e.v.Mknod(ctx, Root, []byte("device"), syscall.S_IFCHR|0o600, 0x103, Cred{}))
	d, err := e.v.Mkdir(ctx, Root, []byte("directory"), 0o3770, Cred{Uid: 1000, Gid: 1000})
	must(d, err)
	for i := range 300 {
		must(e.v.Mknod(ctx, d.Ino, fmt.Appendf(nil, "file %d", i), syscall.S_IFREG|0o644, 0, Cred{}))
	}
	old := Timespec{-2177452800, 123456789}
	must(e.v.Setattr(ctx, e.walk("empty"), nil, SetAttr{Mtime: &old}, Cred{}))
	must(nil, e.v.Setxattr(ctx, e.walk("text"), "user.short", []byte("value"), 0))
	must(nil, e.v.Setxattr(ctx, e.walk("text"), "user.long", random[:60_000], 0))
	must(nil, e.v.Setxattr(ctx, e.walk("random"), aclAccess,
		acl{{aclUserObj, 6, 0}, {aclUser, 7, 1000}, {aclGroupObj, 4, 0}, {aclMask, 6, 0}, {aclOther, 0, 0}}.encode(), 0))
	must(e.v.CreateSnapshot(ctx, Snapshot{Name: "first", Message: "what was there at first", Tags: []string{"a", "b"}}))
	e.sync()
	e.write("random", 100_000, []byte("changed in the middle"))
	must(nil, e.v.Rename(ctx, Root, []byte("pages"), d.Ino, []byte("moved"), 0))
}

func goldenSecond(e *env) {
	e.write("of another client", 0, []byte("hello"))
	if err := e.v.Unlink(ctx, Root, []byte("zeros")); err != nil {
		e.t.Fatal(err)
	}
}

// goldenThird leaves a part of a chunk in another file, settings, parity beside what is new, and multichunks of which little is needed.
func goldenThird(e *env) {
	if err := e.repo.SetParity(ctx, 50); err != nil {
		e.t.Fatal(err)
	}
	random := make([]byte, 400_000)
	rand.New(rand.NewSource(3)).Read(random)
	for i := range 20 {
		e.write(fmt.Sprintf("piece %d", i), 0, random[i*20_000:(i+1)*20_000])
	}
	e.sync()
	e.copyRange("random", 1_001, "part", 0, 150_003)
	e.sync()
	for i := range 20 {
		if i%3 == 0 {
			continue
		}
		if err := e.v.Unlink(ctx, Root, fmt.Appendf(nil, "piece %d", i)); err != nil {
			e.t.Fatal(err)
		}
	}
	e.sync()
}

// goldenCollect has moves published, and hook lists by many small commits.
func goldenCollect(e *env, st remote.Storage) {
	for i := range 150 {
		e.write("often changed", 0, fmt.Appendf(nil, "state %d", i))
		e.sync()
	}
	if _, err := e.v.Collect(ctx, CollectOptions{AllowMost: true}, func(string, int64, int64) {}); err != nil {
		e.t.Fatal(err)
	}
	e.sync()
	for _, dir := range []string{"hooks", "moved", "settings", "parity"} {
		n := 0
		err := st.List(ctx, dir, func(remote.Entry) error { n++; return nil })
		if err != nil || n == 0 {
			e.t.Fatalf("there are %d objects in %s, %v, want some of each kind", n, dir, err)
		}
	}
}
