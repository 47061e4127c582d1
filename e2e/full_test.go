//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestFullRemote fills a storage through a mount, until nothing can be written any more, and makes room there by deleting alone.
func TestFullRemote(t *testing.T) {
	w := emptyWorld(t)
	needFUSE(t)
	disk := filepath.Join(w.dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("dedupfs-test", disk, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	w.url = filepath.Join(disk, "repository")
	if err := os.Mkdir(w.url, 0o700); err != nil {
		t.Fatal(err)
	}
	m, other := w.machine("one"), w.machine("other")
	m.must("init", "-q", "--multichunk-size", "2M", w.url)
	m.mount("--cache-size", "32M")
	other.mount("--cache-size", "32M") // it only has to answer
	r := randomOf(t)
	kept := randomBytes(r, 3_000_000)
	m.write("kept", kept)
	m.must("sync", m.mnt)
	other.must("sync", other.mnt)
	other.write("theirs", []byte("theirs"))
	other.must("sync", other.mnt)
	files := m.fillUp(func() []byte { return randomBytes(r, 4_000_000) })
	m.fails(16, "sync", m.mnt)
	for _, name := range files {
		if err := os.Remove(m.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	m.must("forget", m.mnt, "--keep-last", "1")
	m.must("gc", m.mnt, "--wait", "--max-time", "3m", "--unsafe-allow-delete-most")
	w.eventually(90*time.Second, "a sync after garbage collection", func() bool { return m.run("sync", m.mnt).code == 0 })
	if n := w.remoteBytes(); n > 12<<20 {
		t.Errorf("%d bytes are left of which 3 MB are needed", n)
	}
	again := randomBytes(r, 10_000_000)
	m.write("again", again)
	m.must("sync", m.mnt)
	m.must("gc", m.mnt)
	if list, err := os.ReadDir(filepath.Join(w.url, "ballast")); err != nil || len(list) != 1 {
		t.Errorf("the ballast is %v, %v", list, err)
	}
	other.must("sync", other.mnt)
	other.sees("again", again)
	other.umount()
	m.umount()
	m.must("check", "--read-data", w.url)
	fresh := w.machine("fresh")
	fresh.mount()
	fresh.sees("kept", kept)
	fresh.sees("theirs", []byte("theirs"))
	fresh.umount()
}

// fillUp writes files until there is no space for any more, and returns their names.
func (m *machine) fillUp(data func() []byte) (names []string) {
	m.t.Helper()
	for i := range 200 {
		name := fmt.Sprint("fills ", i)
		names = append(names, name)
		f, err := os.Create(m.path(name))
		if err == nil {
			_, err = bytes.NewReader(data()).WriteTo(f)
			err = errors.Join(err, f.Close())
		}
		if errors.Is(err, syscall.ENOSPC) {
			return names
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	m.t.Fatal("it never was full")
	return nil
}
