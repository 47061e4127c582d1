//go:build linux

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// newThree returns three machines with one repository mounted.
func newThree(t *testing.T, flags ...string) []*machine {
	t.Helper()
	w := newWorld(t)
	var all []*machine
	for _, name := range []string{"a", "b", "c"} {
		m := w.machine(name)
		m.mount(flags...)
		all = append(all, m)
	}
	return all
}

// TestThreeMachines has three machines edit, rename and delete the same at once, and then at random.
func TestThreeMachines(t *testing.T) {
	all := newThree(t, "--poll=1h")
	a, b, c := all[0], all[1], all[2]
	a.sh("mkdir -p d/sub; echo old >f; echo keep >d/keep; echo deep >d/sub/deep")
	agree(t, all...)

	a.sh("echo edited >f")
	b.sh("mv f g")
	c.sh("rm f")
	agree(t, all...)
	if got := a.contents("g"); !slices.Equal(got, []string{"edited\n"}) {
		t.Errorf("edited, renamed and deleted: %q", got)
	}

	a.sh("mv d moved")
	b.sh("echo new >d/sub/new; setfattr -n user.x -v b d/keep 2>/dev/null || chmod 600 d/keep")
	c.sh("rm -r d")
	got := agree(t, all...)
	for _, p := range []string{"moved/sub/new", "moved/keep"} {
		if _, ok := got[p]; !ok {
			t.Errorf("%s is lost: %v", p, got)
		}
	}

	for i, m := range all {
		m.sh(fmt.Sprintf("echo %d >same; mkdir dir; echo %d >dir/%d; ln g link%d", i, i, i, i))
	}
	agree(t, all...)
	if got := b.contents("same"); !slices.Equal(got, []string{"0\n", "1\n", "2\n"}) {
		t.Errorf("made by three: %q", got)
	}
	c.sh("test $(ls dir | wc -l) = 3; test $(stat -c %h g) = 4")

	r := randomOf(t)
	rounds := 3
	if long {
		rounds = 50
	}
	for range rounds {
		for _, m := range all {
			for range 12 {
				m.randomChange(r)
			}
		}
		agree(t, all...)
	}
	end(all...)
}

// randomChange does something to some file or directory. That it fails is no matter: others do the same.
func (m *machine) randomChange(r *rand.Rand) {
	name := func() string {
		parts := []string{"x", "y", "z"}
		return m.path(filepath.Join(parts[:1+r.IntN(3)]...) + fmt.Sprint(r.IntN(3)))
	}
	p := name()
	switch r.IntN(7) {
	case 0:
		_ = os.RemoveAll(p)
	case 1, 2:
		_ = os.Rename(p, name())
	case 3:
		_ = os.MkdirAll(p, 0o755)
	case 4:
		_ = os.Link(p, name())
	default:
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		_ = os.WriteFile(p, fmt.Append(nil, m.mnt, r.Uint64()), 0o644)
	}
}

// TestThreePropagate reads on two machines what was closed on the third, while one of them keeps writing other files.
func TestThreePropagate(t *testing.T) {
	all := newThree(t, "--poll=1s")
	a, b, c := all[0], all[1], all[2]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		f, err := os.Create(b.path("busy"))
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		block := make([]byte, 4096)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := f.WriteAt(block, int64(i%256)*4096); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	for i := range 2 {
		name := fmt.Sprint("f", i)
		data := []byte(strings.Repeat(name, 1000))
		a.write(name, data)
		begin := time.Now()
		for _, m := range []*machine{b, c} {
			m.eventually(30*time.Second, "see "+name, func() bool {
				got, err := os.ReadFile(m.path(name))
				if err == nil && len(got) != len(data) {
					t.Fatalf("%d bytes of %d are seen", len(got), len(data))
				}
				return err == nil
			})
			t.Logf("seen after %s", time.Since(begin).Round(10*time.Millisecond))
		}
	}
	close(stop)
	wg.Wait()
	end(all...)
}
