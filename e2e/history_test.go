//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// TestUndo copies back what was removed by mistake, though nobody had made a snapshot, and after the volume was mounted anew.
func TestUndo(t *testing.T) {
	w := newWorld(t)
	m := w.machine("one")
	m.mount()
	m.write("precious", []byte("precious"))
	m.must("sync", m.mnt)
	m.umount()
	m.mount()
	if err := os.Remove(m.path("precious")); err != nil {
		t.Fatal(err)
	}
	m.must("sync", m.mnt)
	m.umount()
	m.mount()
	found, err := filepath.Glob(m.path(".snapshots/*/precious"))
	if err != nil || len(found) != 1 {
		t.Fatalf("it is in the states %q, %v", found, err)
	}
	if out, err := exec.Command("cp", "-a", found[0], m.mnt).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.sees("precious", []byte("precious"))
	m.umount()
}

// TestListWhileSnapshotsChange lists the snapshots in several loops while two machines make and forget others: what stays is in each
// listing, once, and can be copied with all its attributes.
func TestListWhileSnapshotsChange(t *testing.T) {
	a, b := newPair(t, "--poll=1s")
	a.sh("mkdir d; for i in 1 2 3; do echo $i >d/$i; done; chmod 640 d/1")
	for i := range 5 {
		a.must("snapshot", "create", fmt.Sprint("stays", i), a.mnt)
	}
	agree(t, a, b)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	lists := make([]int, 6)
	for i := range lists {
		m := []*machine{a, b}[i%2]
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := m.wantSnapshots(5); err != nil {
					t.Error(err)
					return
				}
				lists[i]++
			}
		})
	}
	for i := range 4 {
		m := []*machine{a, b}[i%2]
		name := fmt.Sprint("goes", i)
		m.must("snapshot", "create", name, m.mnt)
		m.must("snapshot", "forget", name, m.mnt)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	if out, err := exec.Command("cp", "-a", b.path(".snapshots/stays0/d"), copied).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	close(stop)
	wg.Wait()
	sameTree(t, describe(t, b.path("d")), describe(t, copied))
	buf := make([]byte, 64)
	if _, err := syscall.Getxattr(b.path(".snapshots/stays0"), "user.none", buf); err != syscall.ENODATA {
		t.Errorf("an attribute of a snapshot that is not there: %v", err)
	}
	for i, n := range lists {
		if n == 0 {
			t.Errorf("loop %d has listed nothing", i)
		}
	}
	end(a, b)
}

// wantSnapshots reads the directory of snapshots, and returns an error unless each of those that stay is there, once.
func (m *machine) wantSnapshots(stay int) error {
	entries, err := os.ReadDir(m.path(".snapshots"))
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for _, e := range entries {
		seen[e.Name()]++
	}
	var errs []error
	for i := range stay {
		if n := seen[fmt.Sprint("stays", i)]; n != 1 {
			errs = append(errs, fmt.Errorf("snapshot stays%d is listed %d times of %d", i, n, len(entries)))
		}
	}
	return errors.Join(errs...)
}
