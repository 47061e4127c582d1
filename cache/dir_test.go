package cache_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

func contextWithTimeout(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 50*time.Millisecond)
}

// dirFixture is a fixture on a real directory.
func dirFixture(t *testing.T) (*fixture, string) {
	f := newFixture(t)
	f.o.Files = nil
	return f, filepath.Join(t.TempDir(), "cache")
}

func (f *fixture) openDir(dir string) *cache.Cache {
	f.t.Helper()
	c, err := cache.Open(f.t.Context(), dir, f.repo, &f.o)
	if err != nil {
		f.t.Fatalf("Open: %v", err)
	}
	f.t.Cleanup(func() { c.Close() })
	f.c = c
	return c
}

func TestInUse(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	_, err := cache.Open(t.Context(), dir, f.repo, &f.o)
	var inUse cache.ErrInUse
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() || !strings.Contains(err.Error(), dir) {
		t.Fatalf("second Open: %v, want ErrInUse by %d", err, os.Getpid())
	}
	f.close()
	f.openDir(dir)
}

func TestModes(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	f.commit(f.addRandom(50, 8000), "m")
	f.publish()
	f.c.EvictAllForTest()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, "badger") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDatabaseLost deletes or damages the database between two processes.
func TestDatabaseLost(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	chunks := f.addRandom(40, 5000)
	f.commit(chunks, "first")
	f.publish()
	chunks = append(chunks, f.addRandom(40, 5000)...)
	root := f.commit(chunks, "second")
	db := filepath.Join(dir, "badger")
	for what, spoil := range map[string]func(name string){
		"gone":    func(name string) { os.Remove(name) },
		"zeros":   func(name string) { os.WriteFile(name, make([]byte, 5000), 0o600) },
		"garbage": func(name string) { os.WriteFile(name, []byte(strings.Repeat("no database", 500)), 0o600) },
		"empty":   func(name string) { os.Truncate(name, 0) },
	} {
		t.Run(what, func(t *testing.T) {
			f.close()
			files, err := os.ReadDir(db)
			if err != nil || len(files) < 3 {
				t.Fatalf("%d files in the database: %v", len(files), err)
			}
			for _, file := range files {
				spoil(filepath.Join(db, file.Name()))
			}
			f.openDir(dir)
			f.checkTree(f.c, root, chunks, "second")
		})
	}
	p := f.publish()
	f.checkTree(f.reader(), p.Root, chunks, "second")
}

func TestForeignDirectory(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	f.close()
	other := storetest.New(t, remotetest.NewMem())
	if _, err := cache.Open(t.Context(), dir, other, &f.o); err == nil || !strings.Contains(err.Error(), "belongs to repository") {
		t.Errorf("Open with another repository: %v", err)
	}
	format := filepath.Join(dir, "format")
	b, err := os.ReadFile(format)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(b), "cache 1", "cache 2", 1)
	if err := os.WriteFile(format, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Open(t.Context(), dir, f.repo, &f.o); !errors.Is(err, store.ErrFormat) {
		t.Errorf("Open of a newer format: %v, want ErrFormat", err)
	}
	if err := os.WriteFile(format, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Open(t.Context(), dir, f.repo, &f.o); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Open of a directory of others: %v, want ErrCorrupt", err)
	}
	f.o.Size = 1 << 20
	f.o.Size--
	if _, err := cache.Open(t.Context(), t.TempDir(), f.repo, &f.o); err == nil {
		t.Error("Open with room for less than four multichunks succeeds")
	}
}

func TestState(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	if s := f.c.State(); !s.IsZero() {
		t.Errorf("state of a new cache: %+v", s)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := cache.State{
		Client: store.ClientID{1, 2}, Incarnation: store.Incarnation{3}, Key: key, InodeRange: 77, NextInode: 1 << 40,
		Trust:    []byte("trust"),
		Head:     store.Head{Client: store.ClientID{1, 2}, Incarnation: store.Incarnation{3}, Seq: 9, Hash: store.CommitHash{4}},
		Intent:   store.SealedCommit{Head: store.Head{Seq: 10}, Name: "commits/x", Wire: []byte("sealed")},
		BaseHead: store.Head{Client: store.ClientID{7}, Seq: 3},
		Seen:     []store.Head{{Client: store.ClientID{8}, Seq: 4}, {Client: store.ClientID{9}, Seq: 5}},
		Host:     "hostname",
	}
	if err := f.c.SaveState(want); err != nil {
		t.Fatal(err)
	}
	f.close()
	f.openDir(dir)
	if got := f.c.State(); !reflect.DeepEqual(got, want) {
		t.Errorf("State() = %+v, want %+v", got, want)
	}
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	if _, err := cache.LoadKeys(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("LoadKeys of nothing: %v, want ErrNotExist", err)
	}
	if err := cache.SaveKeys(dir, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if b, err := cache.LoadKeys(dir); string(b) != "secret" || err != nil {
		t.Errorf("LoadKeys = %q, %v", b, err)
	}
	if err := os.Truncate(filepath.Join(dir, "keys"), 9); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.LoadKeys(dir); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("LoadKeys of a short file: %v, want ErrCorrupt", err)
	}
}

func TestCloseIsQuick(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	f.st.away.Store(true)
	f.commit(f.addRandom(100, 8000), "c")
	began := time.Now()
	f.close()
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("Close took %v", d)
	}
	if _, err := f.c.Chunk(t.Context(), store.Ref{ID: store.ID{1}}); !errors.Is(err, cache.ErrClosed) {
		t.Errorf("Chunk after Close: %v, want ErrClosed", err)
	}
}
