//go:build linux

package e2e

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// hurts are the ways in which a storage loses an object.
var hurts = map[string]func(t *testing.T, path string){
	"deleted": func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	},
	"damaged": func(t *testing.T, path string) { overwrite(t, path, 100, 4096) },
	"cut": func(t *testing.T, path string) {
		if err := os.Truncate(path, 10_000); err != nil {
			t.Fatal(err)
		}
	},
}

// overwrite inverts n bytes of a file from off on.
func overwrite(t *testing.T, path string, off, n int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := off; i < min(off+n, len(b)); i++ {
		b[i] ^= 0xff
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) gives(name string, want error) {
	m.t.Helper()
	if _, err := os.ReadFile(m.path(name)); !errors.Is(err, want) {
		m.t.Fatalf("ReadFile(%s) = %v, want %v", name, err, want)
	}
}

// What is lost gives EIO. When the same data is written again, on any machine, old and new files read everywhere.
func TestHeal(t *testing.T) {
	for how, hurt := range hurts {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			first := w.machine("first")
			r := randomOf(t)
			data := randomBytes(r, 1<<20)
			first.mount()
			first.write("old", data)
			first.umount()
			first.wipe() // with all that it had kept
			hurt(t, largest(t, w.objects(), nil))

			a, b := w.machine("a"), w.machine("b")
			for _, m := range []*machine{a, b} {
				m.mount("--poll=1h")
				m.gives("old", syscall.EIO)
			}
			first.fails(21, "check", "--read-data")
			a.write("new", data)
			a.must("sync", a.mnt)
			a.sees("old", data)
			a.sees("new", data)
			b.must("sync", b.mnt)
			b.sees("old", data)
			b.sees("new", data)
			c := w.machine("c")
			c.mount("--read-only")
			c.sees("old", data)
			for _, m := range []*machine{a, b, c} {
				m.umount()
			}
			c.mount()
			c.sees("old", data)
			c.sees("new", data)
			c.umount()
			first.must("check")
			first.must("check", "--read-data")
		})
	}
}

// A machine that still has what the remote has lost does not notice when it reads. Check tells it.
func TestHealAfterCheck(t *testing.T) {
	for _, mounted := range []bool{true, false} {
		name := "unmounted"
		if mounted {
			name = "mounted"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.machine("m")
			data := randomBytes(randomOf(t), 1<<20)
			m.mount()
			m.write("old", data)
			m.must("sync", m.mnt)
			if !mounted {
				m.umount()
			}
			hurts["deleted"](t, largest(t, w.objects(), nil))
			if r := m.run("check"); r.code != 20 && r.code != 21 {
				t.Fatalf("check: exit code %d\n%s", r.code, r.stderr)
			}
			if !mounted {
				m.mount()
			}
			m.sees("old", data)
			m.write("new", data)
			m.umount()
			m.must("check", "--read-data")
			other := w.machine("other")
			other.mount()
			other.sees("old", data)
			other.sees("new", data)
			other.umount()
		})
	}
}
