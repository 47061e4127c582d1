//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A machine that still has what the remote has lost brings all of it back, mounted or not.
func TestRepairFromCache(t *testing.T) {
	for _, mounted := range []bool{true, false} {
		name := "unmounted"
		if mounted {
			name = "mounted"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			writer, reader := w.machine("writer"), w.machine("reader")
			r := randomOf(t)
			files := fewFiles(r)
			writer.mount()
			for name, data := range files {
				writer.write(name, data)
			}
			writer.umount()
			reader.mount()
			for name, data := range files {
				reader.sees(name, data)
			}
			if !mounted {
				reader.umount()
			}
			if err := os.RemoveAll(filepath.Join(w.url, "data")); err != nil {
				t.Fatal(err)
			}
			fresh := w.machine("fresh")
			fresh.fails(21, "check")
			reader.fails(20, "check")
			reader.fails(20, "repair", "--dry-run")
			reader.must("repair")
			if !mounted {
				reader.mount()
			}
			reader.sees("big", files["big"])
			reader.umount()
			fresh.must("check", "--read-data")
			fresh.mount()
			for name, data := range files {
				fresh.sees(name, data)
			}
			fresh.umount()
		})
	}
}

// What is damaged is lost where nobody has it; what is intact beside it stays.
func TestRepairPieces(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	data := randomBytes(randomOf(t), 3<<20)
	m.mount()
	m.write("file", data)
	m.umount()
	m.wipe()
	overwrite(t, largest(t, w.objects(), nil), 100_000, 10) // in the second segment
	for range 2 {
		if said := m.run("repair", "--json"); said.code != 21 || !strings.Contains(said.stdout, "file") {
			t.Fatalf("repair: exit code %d, want 21 and the file that is lost\n%s%s", said.code, said.stdout, said.stderr)
		}
	}
	m.mount()
	if n := m.readable("file", data); n < len(data)/2 || n == len(data) {
		t.Errorf("%d of %d bytes can be read, want most", n, len(data))
	}
	m.write("again", data)
	m.umount()
	m.must("check", "--read-data")
	m.must("repair")
	m.wipe()
	m.mount()
	m.sees("file", data)
	m.sees("again", data)
	m.umount()
	m.must("check", "--read-data")
}

// What nobody has any more is given up on demand, beside a mount: files that are lost in part get another name, and nothing else changes.
func TestReplaceLost(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	data := randomBytes(randomOf(t), 3<<20)
	m.mount()
	m.write("whole", []byte("whole"))
	m.must("sync", m.mnt) // apart from what will be lost
	m.write("file.bin", data)
	m.must("snapshot", "create", "before", m.mnt, "--sync")
	m.umount()
	m.wipe()
	overwrite(t, largest(t, w.objects(), nil), 100_000, 10)
	m.mount()
	if said := m.run("repair", "--replace-lost", "--dry-run"); said.code != 21 || !strings.Contains(said.stdout, "file (damaged).bin") {
		t.Fatalf("dry run: exit code %d, want 21 and the new name\n%s%s", said.code, said.stdout, said.stderr)
	}
	if _, err := os.Stat(m.path("file.bin")); err != nil {
		t.Errorf("after a dry run: %v", err)
	}
	if said := m.run("repair", "--replace-lost"); said.code != 21 || !strings.Contains(said.stdout, "before:/file.bin") || strings.Contains(said.stdout, "current:") ||
		!strings.Contains(said.stderr, "snapshot forget") {
		t.Fatalf("exit code %d, want 21 for the snapshot alone, and what to do\n%s%s", said.code, said.stdout, said.stderr)
	}
	if said := m.run("check", "--read-data"); said.code != 21 || strings.Contains(said.stdout, "current:") {
		t.Errorf("check: exit code %d, want 21 for the snapshot alone\n%s%s", said.code, said.stdout, said.stderr)
	}
	if _, err := os.Stat(m.path("file.bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lost file is still there under its name: %v", err)
	}
	left, err := os.ReadFile(m.path("file (damaged).bin"))
	if err != nil || len(left) != len(data) {
		t.Fatalf("%d bytes are left, %v", len(left), err)
	}
	wrong := 0
	for i := range data {
		if left[i] != data[i] {
			wrong++
			if left[i] != 0 {
				t.Fatalf("byte %d is neither right nor zero", i)
			}
		}
	}
	if wrong == 0 || wrong > len(data)/2 {
		t.Errorf("%d of %d bytes are zeros, want some", wrong, len(data))
	}
	m.sees("whole", []byte("whole"))
	m.must("snapshot", "forget", "before", m.mnt)
	m.must("forget", "--keep-last=1", m.mnt)
	m.must("repair") // what nobody needs any more is cleared up
	m.umount()
	m.must("check", "--read-data")
}

// Where no older state needs what is lost, giving it up leaves nothing damaged.
func TestReplaceLostClean(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.write("file.bin", randomBytes(randomOf(t), 3<<20))
	m.umount()
	m.wipe()
	overwrite(t, largest(t, w.objects(), nil), 100_000, 10)
	m.must("repair", "--replace-lost")
	m.must("check", "--read-data")
	m.mount()
	if _, err := os.Stat(m.path("file (damaged).bin")); err != nil {
		t.Error(err)
	}
	m.umount()
}

// Parity that is set beside a mount is put beside all that this mount stores from then on.
func TestParityBesideMount(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.write("old", randomBytes(randomOf(t), 1<<20))
	m.must("sync", m.mnt)
	m.must("repair", "--parity=5%")
	m.write("new", randomBytes(randomOf(t), 1<<20))
	m.umount()
	bare := map[string]bool{}
	for _, object := range w.objects() {
		if rest, ok := strings.CutPrefix(object, filepath.Join(w.url, "data")+"/"); ok {
			bare[filepath.Base(rest)] = true
		}
	}
	for _, object := range w.objects() {
		if strings.HasPrefix(object, filepath.Join(w.url, "parity")+"/") {
			delete(bare, filepath.Base(object))
		}
	}
	if len(bare) > 0 {
		t.Errorf("without parity: %v", bare)
	}
}

// readable returns how many bytes of a file can be read, and checks those and that others give EIO.
func (m *machine) readable(name string, want []byte) (n int) {
	m.t.Helper()
	f, err := os.Open(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 4096)
	for off := 0; off < len(want); off += len(buf) {
		switch _, err := f.ReadAt(buf, int64(off)); {
		case errors.Is(err, syscall.EIO):
		case err != nil:
			m.t.Fatal(err)
		case !bytes.Equal(buf, want[off:off+len(buf)]):
			m.t.Fatalf("wrong bytes at %d", off)
		default:
			n += len(buf)
		}
	}
	return n
}

// Parity lets readers read over bit rot, and repairs it, byte by byte.
func TestParity(t *testing.T) {
	w := newWorld(t, "--parity=5%")
	m := w.machine("m")
	data := randomBytes(randomOf(t), 3<<20)
	m.mount()
	m.write("file", data)
	m.umount()
	m.wipe()
	victim := largest(t, w.objects(), nil)
	before, err := os.ReadFile(victim)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, victim, 50, 10) // in the header
	overwrite(t, victim, 100_000, 70_000)
	m.fails(20, "check", "--without-password")
	m.fails(20, "check", "--read-data")
	m.mount("--read-only")
	m.sees("file", data)
	m.umount()
	m.must("check", "--repair", "--read-data")
	if after, err := os.ReadFile(victim); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the object is not what it was: %v", err)
	}
	m.must("check", "--read-data")
	m.must("check", "--without-password")
}

// TestRepairSmall loses or damages each object that is no multichunk, one at a time: the machine that knows them puts it again, and a
// new machine reads all.
func TestRepairSmall(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	files := fewFiles(randomOf(t))
	m.mount()
	for name, data := range files {
		m.write(name, data)
		m.must("sync", m.mnt)
	}
	m.umount()
	fresh := w.machine("fresh")
	damaged := 0
	for _, name := range w.objects() {
		rel, err := filepath.Rel(w.url, name)
		if err != nil || strings.HasPrefix(rel, "data") {
			continue
		}
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		damaged++
		if damaged%2 == 0 && !strings.HasPrefix(rel, "hooks") && !strings.HasPrefix(rel, "ballast") {
			err = os.Remove(name)
		} else {
			overwrite(t, name, len(whole)/2, 10)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Log(rel)
		m.fails(20, "check")
		m.must("repair", "--quick")
		m.must("check")
		fresh.must("check")
	}
	if damaged < 6 {
		t.Errorf("%d objects damaged, so this shows little", damaged)
	}
	fresh.mount()
	for name, data := range files {
		fresh.sees(name, data)
	}
	fresh.umount()
}
