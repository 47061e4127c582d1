//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// newPair returns two machines with one repository mounted, each under its own name.
func newPair(t *testing.T, flags ...string) (a, b *machine) {
	t.Helper()
	w := newWorld(t)
	a, b = w.machine("a"), w.machine("b")
	for _, m := range []*machine{a, b} {
		m.mount(append([]string{"--poll=1h"}, flags...)...)
	}
	return a, b
}

// agree syncs the machines until each has seen what the others have, and fails if they do not show the same then.
func agree(t *testing.T, machines ...*machine) map[string]entry {
	t.Helper()
	for range 3 {
		for _, m := range machines {
			m.must("sync", m.mnt)
		}
	}
	want := describe(t, machines[0].mnt)
	for _, m := range machines[1:] {
		if got := describe(t, m.mnt); !maps.Equal(got, want) {
			t.Fatalf("machines differ:\n%v\n%v", got, want)
		}
	}
	return want
}

// end unmounts the machines and checks the repository.
func end(machines ...*machine) {
	for _, m := range machines {
		m.umount()
	}
	machines[0].must("check", "--read-data")
}

func (m *machine) sh(script string) {
	m.t.Helper()
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = m.mnt
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// contents returns what the files whose names begin with prefix hold.
func (m *machine) contents(prefix string) (all []string) {
	m.t.Helper()
	names, err := os.ReadDir(m.mnt)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range names {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		data, err := os.ReadFile(m.path(e.Name()))
		if err != nil {
			m.t.Fatal(err)
		}
		all = append(all, string(data))
	}
	slices.Sort(all)
	return all
}

// TestMergeMoves moves two directories into each other.
func TestMergeMoves(t *testing.T) {
	a, b := newPair(t)
	a.sh("mkdir -p a/c b/d/e; echo 1 >a/c/f; echo 2 >b/d/e/g")
	agree(t, a, b)
	a.sh("mv a b/d/e")
	b.sh("mv b/d a/c")
	all := agree(t, a, b)
	files := 0
	for p := range all {
		if base := filepath.Base(p); base == "f" || base == "g" {
			files++
		}
	}
	if files != 2 {
		t.Errorf("%d files are left of 2: %v", files, slices.Sorted(maps.Keys(all)))
	}
	end(a, b)
}

// TestMergeContents changes one file on two machines at once: to the same, to different contents, one after the other.
func TestMergeContents(t *testing.T) {
	a, b := newPair(t)
	a.sh("echo 0 >f; echo 0 >g; echo 0 >h; echo 0 >gone")
	agree(t, a, b)
	a.sh("echo a >f; echo same >g; rm gone")
	b.sh("echo b >f; echo same >g; touch -d 2037-01-01 g; echo edited >gone")
	agree(t, a, b)
	for prefix, want := range map[string][]string{"f": {"a\n", "b\n"}, "g": {"edited\n", "same\n"}} {
		if got := a.contents(prefix); !slices.Equal(got, want) {
			t.Errorf("contents of %s*: %q, want %q", prefix, got, want)
		}
	}
	for _, m := range []*machine{a, b} {
		if r := m.run("conflicts", "list", m.mnt); r.code != 31 || strings.Count(r.stdout, "(conflict ") != 1 {
			t.Errorf("conflicts list: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		m.fails(31, "status", m.mnt)
	}
	a.sh("rm f*conflict*")
	a.must("conflicts", "list", a.mnt)
	b.sh("touch -d 2037-01-01 h; echo first >h; touch -d 2037-01-01 h")
	agree(t, a, b)
	a.sh("echo second >h; touch -d 2001-01-01 h") // later, whatever the clock says
	agree(t, a, b)
	if got := b.contents("h"); !slices.Equal(got, []string{"second\n"}) {
		t.Errorf("h: %q", got)
	}
	end(a, b)
}

// TestMergeLongName overwrites a file with a long name on both machines round after round.
func TestMergeLongName(t *testing.T) {
	a, b := newPair(t)
	name := strings.Repeat("ä", 123) + ".jpg"
	rounds := 6
	if long {
		rounds = 50
	}
	want := map[string]bool{}
	for i := range rounds {
		for j, m := range []*machine{a, b} {
			data := fmt.Sprint(i, " ", j)
			m.write(name, []byte(data))
			want[data] = true
		}
		agree(t, a, b)
	}
	files := a.contents("ä")
	if len(files) != rounds+1 {
		t.Errorf("%d files after %d conflicts", len(files), rounds)
	}
	entries, err := os.ReadDir(a.mnt)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n := e.Name(); len(n) > 255 || strings.Count(n, "(conflict ") > 1 || !strings.HasSuffix(n, ".jpg") || strings.ToValidUTF8(n, "") != n {
			t.Errorf("name %q", n)
		}
	}
	end(a, b)
}

// TestMergeLostCache wipes one machine's local state while it has files that are not on the remote.
func TestMergeLostCache(t *testing.T) {
	a, b := newPair(t)
	a.sh("for i in 1 2 3; do echo $i >f$i; done")
	agree(t, a, b)
	a.sh("echo 4 >f4")
	a.kill()
	a.wipe()
	a.mount("--poll=1h")
	a.sh("for i in 1 2 3 4; do echo $i >f$i; done")
	b.sh("echo 4 >f4")
	all := agree(t, a, b)
	for p := range all {
		if strings.Contains(p, "conflict") {
			t.Errorf("%s although the contents are equal", p)
		}
	}
	end(a, b)
}

// TestMergePropagates reads on one machine what was closed on the other, with nobody syncing.
func TestMergePropagates(t *testing.T) {
	w := newWorld(t)
	a, b := w.machine("a"), w.machine("b")
	a.mount("--poll=1s")
	b.mount("--poll=1s")
	for i := range 3 {
		name := fmt.Sprint("f", i)
		a.write(name, []byte(name))
		begin := time.Now()
		b.eventually(5*time.Second, "see "+name, func() bool { // commit delay and poll interval, and 2 s
			data, err := os.ReadFile(b.path(name))
			return err == nil && string(data) == name
		})
		t.Logf("seen after %s", time.Since(begin).Round(10*time.Millisecond))
		a, b = b, a
	}
	end(a, b)
}

// TestMergePropagatesBesideUpload reads on one machine a small file that was closed on the other while that uploads a large one; in the
// end both have both.
func TestMergePropagatesBesideUpload(t *testing.T) {
	w := newWorld(t)
	a, b := w.machine("a"), w.machine("b")
	a.mount("--poll=1s", "--limit-upload=1M")
	b.mount("--poll=1s")
	large := make([]byte, 40<<20)
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	a.write("large", large)
	a.eventually(20*time.Second, "upload", func() bool {
		return strings.Contains(a.must("status", a.mnt), "uploading") // the large file is committed here
	})
	a.write("small", []byte("small"))
	begin := time.Now()
	b.eventually(30*time.Second, "see small", func() bool { // a quarter of what the large file takes; the machine may be busy
		data, err := os.ReadFile(b.path("small"))
		return err == nil && string(data) == "small"
	})
	t.Logf("seen after %s", time.Since(begin).Round(10*time.Millisecond))
	if _, err := os.Stat(b.path("large")); err == nil {
		t.Fatal("the large file is there too: this shows nothing")
	}
	b.write("other", []byte("from b"))
	a.eventually(20*time.Second, "see other beside its upload", func() bool {
		data, err := os.ReadFile(a.path("other"))
		return err == nil && string(data) == "from b"
	})
	a.kill()
	a.mount("--poll=1s")
	agree(t, a, b)
	b.sees("large", large)
	end(a, b)
}

// TestMergeGit uses a git repository from two machines in turn.
func TestMergeGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	a, b := newPair(t)
	a.sh("git init -q r && cd r && git config user.email a@b && git config user.name x && git config gc.auto 0")
	for i := range 3 {
		for _, m := range []*machine{a, b} {
			m.must("sync", m.mnt)
			m.sh(fmt.Sprintf("cd r && echo %d %s >>log && git add log && git commit -qm %d && git fsck --full", i, filepath.Base(m.mnt), i))
			m.must("sync", m.mnt)
		}
	}
	agree(t, a, b)
	a.sh("cd r && test $(git log --oneline | wc -l) = 6 && git fsck --full && test -z \"$(git status --porcelain)\"")
	end(a, b)
}
