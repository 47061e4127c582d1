//go:build linux

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crashCycles is how often the daemon is killed.
func crashCycles() int {
	if long {
		return 300
	}
	return 25
}

// What was acknowledged by fsync survives kill -9 at any moment, whether or not
// it has been uploaded. Uploads are slow, so that most of it has not.
func TestKill(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	r := randomOf(t)
	acked := newManifest()
	atStake := 0
	for cycle := range crashCycles() {
		m.mount("--limit-upload=50K")
		acked.verify(t, m, func(name string) bool {
			return strings.HasPrefix(name, fmt.Sprintf("c%d-", cycle-1)) || r.IntN(20) == 0
		})
		stop, done := make(chan struct{}), make(chan error, 1)
		known := acked.len()
		go func() { done <- acked.writeUntil(m.mnt, cycle, r, stop) }()
		time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond)
		m.kill()
		close(stop)
		if err := <-done; err != nil {
			t.Fatalf("cycle %d: %v", cycle, err)
		}
		if acked.len() > known {
			atStake++
		}
	}
	if atStake < crashCycles()*3/4 {
		t.Errorf("in %d of %d cycles only there was something to lose", atStake, crashCycles())
	}
	m.mount()
	acked.verify(t, m, all)
	m.umount()
	m.must("check", "--read-data", m.url)
	m.wipe()
	m.mount()
	acked.verify(t, m, all)
	m.umount()
	m.checkPeak()
}

// manifest is what fsync has acknowledged, kept outside of the mount.
type manifest struct {
	mu    sync.Mutex // guards files
	files map[string]acknowledged
}

// acknowledged is a file as it was when fsync returned.
type acknowledged struct {
	size  int
	sum   uint32
	mode  uint32
	mtime unix.Timespec
	xattr string
}

func newManifest() *manifest { return &manifest{files: map[string]acknowledged{}} }

func (k *manifest) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.files)
}

// writeUntil writes files and syncs each, until the mount dies or stop is closed.
func (k *manifest) writeUntil(mnt string, cycle int, r *rand.Rand, stop <-chan struct{}) error {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		name := fmt.Sprintf("c%d-%d", cycle, n)
		a, err := writeSynced(filepath.Join(mnt, name), r)
		if isDead(err) {
			return nil
		}
		if err != nil {
			return err
		}
		k.mu.Lock()
		k.files[name] = a
		k.mu.Unlock()
	}
}

// isDead reports whether err is that of a mount whose process is gone.
func isDead(err error) bool {
	for _, dead := range []error{syscall.ENOTCONN, syscall.ECONNABORTED, syscall.EIO, syscall.ENODEV} {
		if errors.Is(err, dead) {
			return true
		}
	}
	return false
}

// writeSynced makes a file with content that names itself, and syncs it.
func writeSynced(path string, r *rand.Rand) (acknowledged, error) {
	data := selfNaming(path, r.IntN(30_000))
	a := acknowledged{
		size: len(data), sum: crc32.ChecksumIEEE(data), mode: 0o600 | r.Uint32()&0o077,
		mtime: unix.Timespec{Sec: r.Int64N(1 << 32), Nsec: r.Int64N(1e9)}, xattr: filepath.Base(path),
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return a, err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return a, err
	}
	if err := unix.Fchmod(int(f.Fd()), a.mode); err != nil {
		return a, err
	}
	if err := unix.Fsetxattr(int(f.Fd()), "user.name", []byte(a.xattr), 0); err != nil {
		return a, err
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{a.mtime, a.mtime}, 0); err != nil {
		return a, err
	}
	return a, f.Sync()
}

// selfNaming returns n bytes in which every block of 64 says whose and which it is.
func selfNaming(path string, n int) []byte {
	var b bytes.Buffer
	for i := uint64(0); b.Len() < n; i++ {
		block := make([]byte, 64)
		copy(block, filepath.Base(path))
		binary.BigEndian.PutUint64(block[56:], i)
		b.Write(block)
	}
	return b.Bytes()[:n]
}

func all(string) bool { return true }

// verify checks that what was acknowledged is there, of those files that pick names.
func (k *manifest) verify(t *testing.T, m *machine, pick func(name string) bool) {
	t.Helper()
	for name, want := range k.files {
		if !pick(name) {
			continue
		}
		got, err := readBack(m.path(name))
		if err != nil {
			t.Fatalf("%s was acknowledged: %v", name, err)
		}
		if got != want {
			t.Fatalf("%s = %+v, want %+v as acknowledged", name, got, want)
		}
	}
}

func readBack(path string) (acknowledged, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return acknowledged{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return acknowledged{}, err
	}
	xattr := make([]byte, 256)
	n, err := unix.Getxattr(path, "user.name", xattr)
	if err != nil {
		return acknowledged{}, err
	}
	return acknowledged{int(st.Size), crc32.ChecksumIEEE(data), st.Mode & 0o7777, st.Mtim, string(xattr[:n])}, nil
}

// A copy that was cut off by a crash can be finished.
func TestFinishCopyAfterKill(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	src := sourceTree(t)
	m.mount()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		copyQuietly(src, m.path("tree"))
	}()
	time.Sleep(700 * time.Millisecond)
	m.kill()
	<-copied
	m.mount()
	runTool(t, "rsync", "-a", "--checksum", src+"/", m.path("tree")+"/")
	diffTrees(t, src, m.path("tree"))
	m.umount()
	m.must("check", "--read-data", m.url)
}

// copyQuietly copies until it cannot.
func copyQuietly(from, to string) {
	_ = exec.Command("cp", "-a", from, to).Run()
}
