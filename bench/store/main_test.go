package main

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// write makes a file with its directories.
func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o640); err != nil {
		t.Fatal(err)
	}
}

// makeVersions makes a data set in which files are changed, come, go and become something else.
func makeVersions(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	rng := rand.NewChaCha8([32]byte{7})
	big := make([]byte, 300_000)
	rng.Read(big)
	for i := range big {
		big[i] &= 63 // with all values it would be cut into the large chunks of media
	}
	v0, v1 := filepath.Join(dir, "v00"), filepath.Join(dir, "v01")
	write(t, filepath.Join(v0, "big"), big)
	write(t, filepath.Join(v0, "sub", "gone"), []byte("gone"))
	write(t, filepath.Join(v0, "swapped", "deep", "file"), []byte("below"))
	write(t, filepath.Join(v0, "empty"), nil)
	changed := bytes.Clone(big[:290_000])
	changed[150_000] ^= 1
	write(t, filepath.Join(v1, "big"), changed)
	write(t, filepath.Join(v1, "swapped"), []byte("a file now"))
	write(t, filepath.Join(v1, "sub", "new"), []byte("new"))
	if err := os.Symlink("sub/new", filepath.Join(v1, "empty")); err != nil {
		t.Fatal(err)
	}
	return []string{v0, v1}
}

// openVolume opens a fresh repository in a local directory.
func openVolume(t *testing.T) (dir string, repo *store.Repository, v *fs.Volume) {
	t.Helper()
	dir = t.TempDir()
	st, err := remote.Open(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	repo = storetest.NewConfig(t, st, store.Config{SettleTime: store.NoSettleTime})
	ca, err := cache.Open(t.Context(), t.TempDir(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ca.Close() })
	if v, err = fs.Open(t.Context(), ca, repo, &fs.Options{Poll: -1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close(t.Context()) })
	return dir, repo, v
}

// checkVolume compares dir, and all below, with from.
func checkVolume(t *testing.T, m *mirror, from string, dir fs.Ino) {
	t.Helper()
	got, err := m.list(dir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d entries, want %d", from, len(got), len(want))
	}
	for _, e := range want {
		name := filepath.Join(from, e.Name())
		a := got[e.Name()]
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case a == nil || !m.same(info, a):
			t.Errorf("%s is not as it should be: %+v", name, a)
		case e.IsDir():
			checkVolume(t, m, name, a.Ino)
		case info.Mode().IsRegular():
			checkContent(t, m, name, a)
		}
	}
}

func checkContent(t *testing.T, m *mirror, name string, a *fs.Attr) {
	t.Helper()
	h, err := m.v.Open(m.ctx, a.Ino, syscall.O_RDONLY, fs.Cred{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	got := make([]byte, a.Size)
	if n, err := h.Read(m.ctx, got, 0); err != nil || n != len(got) {
		t.Fatalf("read %s: %d bytes, %v", name, n, err)
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has other content: %v", name, err)
	}
}

func TestMirror(t *testing.T) {
	dirs := makeVersions(t)
	for name, inPlace := range map[string]bool{"replace": false, "in place": true} {
		t.Run(name, func(t *testing.T) {
			_, _, v := openVolume(t)
			m := &mirror{ctx: t.Context(), v: v, inPlace: inPlace}
			for _, dir := range dirs {
				if err := addVersion(t.Context(), v, dir, inPlace); err != nil {
					t.Fatal(err)
				}
				top, err := m.list(fs.Root)
				if err != nil {
					t.Fatal(err)
				}
				checkVolume(t, m, dir, top[currentName].Ino)
			}
		})
	}
}

// TestTakeApart checks that every byte of a repository is counted once.
func TestTakeApart(t *testing.T) {
	dir, repo, v := openVolume(t)
	for _, version := range makeVersions(t) {
		if err := addVersion(t.Context(), v, version, false); err != nil {
			t.Fatal(err)
		}
	}
	p, err := takeApart(repo, dir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := size(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Data.Bytes + p.Nodes.Bytes + p.Commits.Bytes + p.Keys.Bytes; got != want {
		t.Errorf("parts have %d bytes, the repository %d", got, want)
	}
	if p.Commits.Objects != 2 {
		t.Errorf("%d commits, want one for each of the 2 versions", p.Commits.Objects)
	}
	if p.Data.Plain < 300_000 || p.Data.Plain > 360_000 {
		t.Errorf("%d bytes in unique chunks, of 300,000 and a change in the middle", p.Data.Plain)
	}
	for name, k := range map[string]packed{"data": p.Data, "nodes": p.Nodes} {
		if k.Groups == 0 || k.padding() < 0 || k.padding() > 16<<10*int64(k.Objects) {
			t.Errorf("%s: groups and padding are %d and %d of %d bytes", name, k.Groups, k.padding(), k.Bytes)
		}
	}
}

func TestCompare(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write(t, filepath.Join(a, "sub", "f"), bytes.Repeat([]byte("x"), blockSize+1))
	if err := compare(a, b); err == nil {
		t.Error("compare finds what is missing to be there")
	}
	if err := os.CopyFS(b, os.DirFS(a)); err != nil {
		t.Fatal(err)
	}
	times := func(name string) {
		info, err := os.Stat(filepath.Join(a, name))
		if err != nil {
			t.Fatal(err)
		}
		os.Chmod(filepath.Join(b, name), info.Mode())
		os.Chtimes(filepath.Join(b, name), info.ModTime(), info.ModTime())
	}
	times("sub")
	times("sub/f")
	if err := compare(a, b); err != nil {
		t.Errorf("compare of equal trees: %v", err)
	}
	write(t, filepath.Join(b, "sub", "f"), append(bytes.Repeat([]byte("x"), blockSize), 'y'))
	times("sub/f")
	if err := compare(a, b); err == nil {
		t.Error("compare does not see that the last byte differs")
	}
}

func TestTable(t *testing.T) {
	all := []*result{
		{Set: "a", Program: "dedupfs", Remote: []int64{1, 20}, Parts: &parts{}},
		{Set: "a", Program: "restic", Remote: []int64{80}},
		{Set: "a", Program: "borg", Remote: []int64{40}},
		{Set: "b", Program: "dedupfs", Remote: []int64{10}},
		{Set: "b", Program: "borg", Remote: []int64{80}},
		{Set: "c", Program: "dedupfs", Remote: []int64{10}},
	}
	if got := geometricMean(ratios(all)); math.Abs(got-0.25) > 1e-9 {
		t.Errorf("geometric mean of 1/2 and 1/8 = %v, want 1/4", got)
	}
	if got := table(all); !strings.Contains(got, "0.250 in the geometric mean of 2 sets") {
		t.Errorf("the table does not tell it:\n%s", got)
	}
	b, err := json.Marshal(all[0])
	if err != nil {
		t.Fatal(err)
	}
	var back result
	if err := json.Unmarshal(b, &back); err != nil || back.last() != 20 || back.Parts == nil {
		t.Errorf("%s came back as %+v, %v", b, back, err)
	}
}

func TestDrawCharts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "charts")
	all := []*result{
		{Set: "a", Program: "dedupfs", Remote: []int64{1e6, 2e6}}, {Set: "a", Program: "restic", Remote: []int64{2e6, 3e6}},
		{Set: "b", Program: "dedupfs", Remote: []int64{5e6}},
	}
	if err := drawCharts(dir, all); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"storage": ">b<", "storage-a": ">restic<", "storage-b": ">dedupfs<"} {
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil || !strings.HasPrefix(string(svg), "<svg") || !strings.Contains(string(svg), want) {
			t.Errorf("%s.svg has no %s: %v", name, want, err)
		}
	}
}
