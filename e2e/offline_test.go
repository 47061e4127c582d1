//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// away mounts a repository on a server where another machine has left a file, and takes the server away. In the mount "known" has been
// read, and "far" has not.
func away(t *testing.T, flags ...string) (w *world, m *machine, s *server, far []byte) {
	t.Helper()
	w = newWorld(t)
	m, other := w.machine("m"), w.machine("other")
	far = randomBytes(randomOf(t), 3<<20)
	other.mount()
	other.write("far", far)
	other.write("known", []byte("known"))
	other.umount()
	s = newServer(t, w.url)
	over := *w
	over.url = s.url()
	m.world = &over
	m.mount(append([]string{"--poll=1s"}, flags...)...)
	m.sees("known", []byte("known"))
	if _, err := os.Stat(m.path("far")); err != nil {
		t.Fatal(err)
	}
	s.stop()
	return w, m, s, far
}

// TestOfflineError reads and writes while the storage is away, and syncs when it is there again.
func TestOfflineError(t *testing.T) {
	t.Parallel() // it waits
	w, m, s, far := away(t, "--offline=error")
	if _, err := os.ReadFile(m.path("far")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of what is not here: %v, want EIO", err)
	}
	begin := time.Now()
	if _, err := os.ReadFile(m.path("far")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of what is not here: %v, want EIO", err)
	}
	t.Logf("EIO after %s", time.Since(begin).Round(10*time.Millisecond))
	m.sees("known", []byte("known"))
	mine := randomBytes(randomOf(t), 8<<20)
	m.write("mine", mine)
	m.sh("mv known renamed; mkdir d; echo 1 >d/f; rm d/f")
	begin = time.Now()
	m.fails(15, "sync", m.mnt)
	t.Logf("sync gave up after %s", time.Since(begin).Round(100*time.Millisecond))

	s.start()
	begin = time.Now()
	m.must("sync", m.mnt)
	took := time.Since(begin)
	t.Logf("sync took %s when the storage was there again", took.Round(100*time.Millisecond))
	m.sees("far", far)
	m.umount()
	other := w.machine("third")
	other.mount()
	other.sees("mine", mine)
	other.sees("renamed", []byte("known"))
	other.umount()
}

// TestOfflineWait has a reader wait for the storage, without end and interruptibly.
func TestOfflineWait(t *testing.T) {
	t.Parallel()
	_, m, s, far := away(t, "--offline=wait")
	read := make(chan error, 1)
	go func() {
		data, err := os.ReadFile(m.path("far"))
		if err == nil && !bytes.Equal(data, far) {
			err = errors.New("wrong bytes")
		}
		read <- err
	}()
	select {
	case err := <-read:
		t.Fatalf("read while the storage is away: %v", err)
	case <-time.After(6 * time.Second):
	}
	m.sees("known", []byte("known"))
	s.start()
	select {
	case err := <-read:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Error("the reader still waits")
	}
	m.umount()
}

// TestOfflineFull writes off line until the local budget is full, makes room, and comes back while another machine has gone on.
func TestOfflineFull(t *testing.T) {
	if !long {
		t.Skip("most of it is waiting")
	}
	t.Parallel()
	w, m, s, _ := away(t, "--offline=error", "--cache-size=48M")
	block := randomBytes(randomOf(t), 1<<20)
	f, err := os.Create(m.path("full"))
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for err == nil && written < 200 {
		block[0] = byte(written)
		if _, err = f.Write(block); err == nil {
			written++
		}
	}
	f.Close()
	if !errors.Is(err, syscall.ENOSPC) || written < 10 {
		t.Fatalf("after %d MiB: %v, want ENOSPC", written, err)
	}
	m.sees("known", []byte("known"))
	if err := os.Remove(m.path("known")); err != nil {
		t.Errorf("unlink when all is full: %v", err)
	}
	other := w.machine("third")
	other.mount()
	other.write("theirs", []byte("theirs"))
	other.umount()
	s.start()
	m.must("sync", m.mnt)
	m.must("sync", m.mnt)
	m.sees("theirs", []byte("theirs"))
	m.umount()
	other.mount()
	fi, err := os.Stat(other.path("full"))
	if err != nil || fi.Size() != int64(written)<<20 {
		t.Errorf("%v, %v; want %d MiB", fi, err, written)
	}
	if _, err := os.Stat(other.path("known")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was removed off line: %v", err)
	}
	other.umount()
}
