package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// stalling is a remote that answers only so many gets; the others wait until they are given up.
type stalling struct {
	*remotetest.Mem
	left atomic.Int64
}

func (s *stalling) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if s.left.Add(-1) < 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Mem.Get(ctx, name, off, n)
}

// The file that is restored: random bytes with a hole among them and one at the end.
const (
	holeFrom = 2 << 20
	holeTo   = 5 << 20
	dataTo   = 15 << 20
	bigSize  = 16 << 20
	bigData  = bigSize - (bigSize - dataTo) - (holeTo - holeFrom)
)

// newBig returns a remote with a file named big, and its content.
func newBig(t *testing.T) (*stalling, []byte) {
	t.Helper()
	far := &stalling{Mem: remotetest.NewMem()}
	far.left.Store(1 << 40)
	storetest.New(t, far)
	repo := storetest.Open(t, far)
	ca, err := cache.Open(t.Context(), "", repo, &cache.Options{Files: cachetest.NewDisk(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer ca.Close()
	v, err := fs.Open(t.Context(), ca, repo, &fs.Options{Poll: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close(t.Context())
	_, h, err := v.Create(t.Context(), fs.Root, []byte("big"), syscall.O_RDWR, 0o644, fs.Cred{})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, bigSize)
	rng := rand.NewChaCha8([32]byte{1})
	for _, part := range [][2]int{{0, holeFrom}, {holeTo, dataTo}} {
		rng.Read(want[part[0]:part[1]])
		if _, err := h.Write(t.Context(), want[part[0]:part[1]], int64(part[0])); err != nil {
			t.Fatal(err)
		}
	}
	h.Release()
	at, err := v.Lookup(t.Context(), fs.Root, []byte("big"))
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(bigSize)
	if _, err := v.Setattr(t.Context(), at.Ino, nil, fs.SetAttr{Size: &size}, fs.Cred{}); err != nil {
		t.Fatal(err)
	}
	if err := v.Sync(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return far, want
}

// restoreBig restores all there is, as a process that has nothing in memory, and returns how many bytes were fetched.
func restoreBig(ctx context.Context, t *testing.T, far *stalling, target string, o restoreOptions) (int64, error) {
	t.Helper()
	repo := storetest.Open(t, far)
	ca, err := cache.OpenReader(t.Context(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ca.Close()
	log := slog.New(slog.DiscardHandler)
	v, err := fs.Open(t.Context(), ca, repo, &fs.Options{ReadOnly: true, SnapshotsDir: snapshotsDir, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close(t.Context())
	p, err := parseSnapshotPath("current")
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.find(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{stdout: io.Discard, stderr: io.Discard, log: log}
	o.workers = 1
	err = a.restore(ctx, v, p, at, target, o)
	return ca.Fetched(), err
}

// interruptBig restores and is interrupted in the middle. It returns the path of what was left, and its size.
func interruptBig(t *testing.T, far *stalling, target string) (left string, size int64) {
	t.Helper()
	left = filepath.Join(target, tempName("big"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	far.left.Store(45)
	defer far.left.Store(1 << 40)
	go func() {
		for ctx.Err() == nil {
			if fi, err := os.Stat(left); err == nil && fi.Size() > holeTo {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := restoreBig(ctx, t, far, target, restoreOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	fi, err := os.Stat(left)
	if err != nil || fi.Size() <= holeTo || fi.Size() >= dataTo {
		t.Fatalf("an interrupted run has left %v, %v", fi, err)
	}
	if _, err := os.Stat(filepath.Join(target, "big")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a file that is not complete is in its place: %v", err)
	}
	return left, fi.Size()
}

// checkBig wants the file as it was, with its holes, and nothing beside it.
func checkBig(t *testing.T, target string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(target, "big"))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what was restored is not what was there: %d bytes, %v", len(got), err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(target, "big"), &st); err != nil {
		t.Fatal(err)
	}
	if took := st.Blocks * 512; took > bigData+(1<<20) {
		t.Errorf("%d bytes of data take %d on the disk", bigData, took)
	}
	if es, err := os.ReadDir(target); len(es) != 1 || err != nil {
		t.Errorf("%v is left in the target, %v", es, err)
	}
}

// TestRestoreGoesOn interrupts the restoring of one file. The next run takes what is there of it, as far as it is right.
func TestRestoreGoesOn(t *testing.T) {
	far, want := newBig(t)
	const edge = 1 << 20 // multichunks around the seam, nodes and commits
	whole, err := restoreBig(t.Context(), t, far, filepath.Join(t.TempDir(), "out"), restoreOptions{})
	if err != nil || whole < bigData {
		t.Fatalf("all of it takes %d bytes, %v", whole, err)
	}
	// change writes into what was left.
	change := func(t *testing.T, left string, off int64, b []byte) {
		f, err := os.OpenFile(left, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	for _, tc := range []struct {
		name  string
		o     restoreOptions
		spoil func(t *testing.T, left string)
		again int64 // bytes that the file needs anew, at most
	}{
		{name: "untouched"},
		{name: "delete others", o: restoreOptions{delete: true}},
		{name: "a byte differs", spoil: func(t *testing.T, left string) {
			change(t, left, holeFrom/2, []byte{^want[holeFrom/2]})
		}, again: 1 << 20},
		{name: "bytes in a hole", spoil: func(t *testing.T, left string) {
			change(t, left, holeFrom+100, want[:1<<20])
		}},
		{name: "longer than the file", spoil: func(t *testing.T, left string) {
			change(t, left, bigSize+5, want[:1<<20])
		}},
		{name: "zeros to the end", spoil: func(t *testing.T, left string) {
			if err := os.Truncate(left, bigSize); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "others could read it", spoil: func(t *testing.T, left string) {
			if err := os.Chmod(left, 0o644); err != nil {
				t.Fatal(err)
			}
		}, again: bigSize},
	} {
		t.Run(tc.name, func(t *testing.T) {
			target := filepath.Join(t.TempDir(), "out")
			left, size := interruptBig(t, far, target)
			if tc.spoil != nil {
				tc.spoil(t, left)
			}
			fetched, err := restoreBig(t.Context(), t, far, target, tc.o)
			if err != nil {
				t.Fatal(err)
			}
			checkBig(t, target, want)
			if had := size - (holeTo - holeFrom); fetched > whole-had+edge+tc.again {
				t.Errorf("%d bytes fetched, %d for the whole file of which %d were there", fetched, whole, had)
			}
		})
	}
}

// TestRestoreNotThroughLinks lets somebody put a second name of a file of his, or a symbolic link, where an interrupted run
// would have left a file.
func TestRestoreNotThroughLinks(t *testing.T) {
	far, want := newBig(t)
	for name, link := range map[string]func(from, to string) error{"hard": os.Link, "symbolic": os.Symlink} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			target, victim := filepath.Join(dir, "out"), filepath.Join(dir, "victim")
			if err := os.Mkdir(target, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := link(victim, filepath.Join(target, tempName("big"))); err != nil {
				t.Fatal(err)
			}
			if _, err := restoreBig(t.Context(), t, far, target, restoreOptions{}); err != nil {
				t.Fatal(err)
			}
			checkBig(t, target, want)
			if b, err := os.ReadFile(victim); string(b) != "precious" || err != nil {
				t.Errorf("a file outside the target has now %d bytes, %v", len(b), err)
			}
		})
	}
}

// TestRestoreAlone lets two runs restore into one target.
func TestRestoreAlone(t *testing.T) {
	far, want := newBig(t)
	target := t.TempDir()
	other, err := openTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&restorer{}).keepOut(other, syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, err = restoreBig(t.Context(), t, far, target, restoreOptions{})
	if code, _ := verdict(err); code != exitInUse {
		t.Errorf("beside another run: %v", err)
	}
	other.close()
	if _, err := restoreBig(t.Context(), t, far, target, restoreOptions{}); err != nil {
		t.Fatal(err)
	}
	checkBig(t, target, want)
}

// TestRestoreProgress has the bytes of a file count while it is copied, once.
func TestRestoreProgress(t *testing.T) {
	r := &restorer{partly: map[fs.Ino]int64{}}
	want := func(what string, n int64) {
		t.Helper()
		if got := r.sum.Bytes + r.copied; got != n {
			t.Errorf("%s: %d bytes are done, want %d", what, got, n)
		}
	}
	file := fs.Attr{Ino: 7, Mode: syscall.S_IFREG, Size: 10}
	r.seen(file)
	r.copiedPart(7, 4)
	want("half-way", 4)
	r.dropCopied(7)
	want("failed", 0)
	r.copiedPart(7, 4)
	r.copiedPart(7, 6)
	want("copied", 10)
	r.through(file, true)
	r.dropCopied(7)
	want("through", 10)
}
