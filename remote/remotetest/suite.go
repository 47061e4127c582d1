package remotetest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
)

// TestStorage runs the contract of remote.Storage against what open returns,
// which is called once per subtest and must be empty.
func TestStorage(t *testing.T, open func(t *testing.T) remote.Storage) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, remote.Storage)
	}{
		{"put_get", testPutGet},
		{"ranges", testRanges},
		{"list", testList},
		{"list_stops", testListStops},
		{"delete", testDelete},
		{"missing", testMissing},
		{"put_again", testPutAgain},
		{"bad_names", testBadNames},
		{"ownership", testOwnership},
		{"canceled", testCanceled},
		{"sync", testSync},
		{"remove_dir", testRemoveDir},
		{"large", testLarge},
		{"concurrent", testConcurrent},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// Bytes returns n bytes that do not compress, the same for the same n and seed.
func Bytes(n int, seed uint64) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(n), byte(n >> 8)})
	r.Read(data)
	return data
}

// name returns a hexadecimal object name in one of 256 folders.
func name(i int) string {
	h := hex.EncodeToString(Bytes(16, uint64(i)))
	return "data/" + h[:2] + "/" + h
}

func put(t *testing.T, s remote.Storage, name string, data []byte) {
	t.Helper()
	if err := s.Put(t.Context(), name, data); err != nil {
		t.Fatalf("Put(%s, %d bytes): %v", name, len(data), err)
	}
}

// wantGet checks one range of an object that holds data.
func wantGet(t *testing.T, s remote.Storage, name string, data []byte, off, n int64) {
	t.Helper()
	got, err := s.Get(t.Context(), name, off, n)
	if err != nil {
		t.Fatalf("Get(%s, %d, %d): %v", name, off, n, err)
	}
	want := data[off:]
	if n >= 0 {
		want = want[:n]
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("Get(%s, %d, %d) = %d bytes, not the %d that were put", name, off, n, len(got), len(want))
	}
}

// list returns the distinct entries of dir, sorted by name.
func list(t *testing.T, s remote.Storage, dir string) []remote.Entry {
	t.Helper()
	var entries []remote.Entry
	err := s.List(t.Context(), dir, func(e remote.Entry) error {
		if !slices.Contains(entries, e) {
			entries = append(entries, e)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("List(%q): %v", dir, err)
	}
	slices.SortFunc(entries, func(a, b remote.Entry) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return entries
}

func testPutGet(t *testing.T, s remote.Storage) {
	for i, size := range []int{0, 1, 4096, 65537, 1 << 20} {
		data := Bytes(size, uint64(i))
		put(t, s, name(i), data)
		wantGet(t, s, name(i), data, 0, -1)
		wantGet(t, s, name(i), data, 0, int64(size))
	}
	put(t, s, "top", []byte("in the root"))
	wantGet(t, s, "top", []byte("in the root"), 0, -1)
}

func testRanges(t *testing.T, s remote.Storage) {
	data := Bytes(100_000, 1)
	put(t, s, name(1), data)
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {1, 1}, {99_999, 1}, {50_000, 50_000}, {65_535, 2}, {0, 100_000},
		{100_000, 0}, {1, -1}, {99_999, -1}, {100_000, -1}} {
		wantGet(t, s, name(1), data, r[0], r[1])
	}
	for _, r := range [][2]int64{{0, 100_001}, {99_999, 2}, {100_001, 1}, {100_001, -1}, {1 << 40, 1}} {
		if got, err := s.Get(t.Context(), name(1), r[0], r[1]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("Get(%d, %d) of 100000 bytes = %d bytes, %v, want ErrUnexpectedEOF", r[0], r[1], len(got), err)
		}
	}
	for _, r := range [][2]int64{{-1, 1}, {1 << 62, 1 << 62}} {
		if _, err := s.Get(t.Context(), name(1), r[0], r[1]); err == nil {
			t.Errorf("Get(%d, %d) = nil error", r[0], r[1])
		}
	}
	put(t, s, name(2), nil)
	wantGet(t, s, name(2), nil, 0, 0)
	wantGet(t, s, name(2), nil, 0, -1)
}

func testList(t *testing.T, s remote.Storage) {
	for n, size := range map[string]int{"id": 3, "heads/00/ab": 0, "heads/00/cd": 10, "heads/0001": 20, "heads-old/x": 1} {
		put(t, s, n, Bytes(size, 0))
	}
	dir := func(name string) remote.Entry { return remote.Entry{Name: name, Size: -1, Dir: true} }
	for _, test := range []struct {
		dir  string
		want []remote.Entry
	}{
		{"", []remote.Entry{dir("heads"), dir("heads-old"), {Name: "id", Size: 3}}},
		{"heads", []remote.Entry{dir("00"), {Name: "0001", Size: 20}}},
		{"heads/00", []remote.Entry{{Name: "ab"}, {Name: "cd", Size: 10}}},
		{"nothing", nil},
		{"heads/nothing/at/all", nil},
		{"head", nil},
	} {
		if got := list(t, s, test.dir); !slices.Equal(got, test.want) {
			t.Errorf("List(%q) = %v, want %v", test.dir, got, test.want)
		}
	}
}

func testListStops(t *testing.T, s remote.Storage) {
	for i := range 5 {
		put(t, s, fmt.Sprintf("d/%d", i), nil)
	}
	stop, calls := errors.New("stop"), 0
	err := s.List(t.Context(), "d", func(remote.Entry) error { calls++; return stop })
	if err != stop || calls != 1 {
		t.Errorf("List with an fn that stops = %v after %d calls, want its own error after 1", err, calls)
	}
}

func testDelete(t *testing.T, s remote.Storage) {
	put(t, s, "a/b/1", []byte("one"))
	put(t, s, "a/b/2", []byte("two"))
	for range 2 {
		if err := s.Delete(t.Context(), "a/b/1"); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	if _, err := s.Get(t.Context(), "a/b/1", 0, -1); !errors.Is(err, remote.ErrNotExist) {
		t.Errorf("Get after Delete = %v, want ErrNotExist", err)
	}
	if got, want := list(t, s, "a/b"), []remote.Entry{{Name: "2", Size: 3}}; !slices.Equal(got, want) {
		t.Errorf("List after Delete = %v, want %v", got, want)
	}
	wantGet(t, s, "a/b/2", []byte("two"), 0, -1)
	if err := s.Delete(t.Context(), "no/such/dir"); err != nil {
		t.Errorf("Delete of what never was: %v", err)
	}
}

func testMissing(t *testing.T, s remote.Storage) {
	put(t, s, "a/there", []byte("x"))
	for _, name := range []string{"missing", "a/missing", "b/missing", "a"} {
		for _, n := range []int64{-1, 0, 1} {
			if _, err := s.Get(t.Context(), name, 0, n); !errors.Is(err, remote.ErrNotExist) {
				t.Errorf("Get(%s, 0, %d) = %v, want ErrNotExist", name, n, err)
			}
		}
	}
}

func testPutAgain(t *testing.T, s remote.Storage) {
	data := Bytes(10_000, 3)
	for range 3 {
		put(t, s, name(3), data)
	}
	wantGet(t, s, name(3), data, 0, -1)
	dir := name(3)[:len("data/xx")]
	if got := list(t, s, dir); len(got) != 1 {
		t.Errorf("List after three puts of one object = %v", got)
	}
}

func testBadNames(t *testing.T, s remote.Storage) {
	for _, name := range []string{"", ".", "..", "/a", "a/", "a//b", "a/../b", "../a", "./a"} {
		if err := s.Put(t.Context(), name, nil); err == nil {
			t.Errorf("Put(%q) = nil error", name)
		}
		if _, err := s.Get(t.Context(), name, 0, -1); err == nil {
			t.Errorf("Get(%q) = nil error", name)
		}
		if err := s.Delete(t.Context(), name); err == nil {
			t.Errorf("Delete(%q) = nil error", name)
		}
	}
}

func testOwnership(t *testing.T, s remote.Storage) {
	data := []byte("these bytes")
	put(t, s, "o", data)
	data[0] = 'X'
	got, err := s.Get(t.Context(), "o", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	got[1] = 'X'
	_ = append(got, "more"...)
	wantGet(t, s, "o", []byte("these bytes"), 0, -1)
}

func testCanceled(t *testing.T, s remote.Storage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Put(ctx, "c", []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with a canceled context = %v", err)
	}
	put(t, s, "c", []byte("x"))
	if _, err := s.Get(ctx, "c", 0, -1); !errors.Is(err, context.Canceled) {
		t.Errorf("Get with a canceled context = %v", err)
	}
}

func testSync(t *testing.T, s remote.Storage) {
	syncer, ok := s.(remote.Syncer)
	if !ok {
		t.Skip("not a Syncer")
	}
	put(t, s, name(1), Bytes(1000, 1))
	put(t, s, name(2), Bytes(1000, 2))
	if err := s.Delete(t.Context(), name(2)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := syncer.Sync(t.Context()); err != nil {
			t.Errorf("Sync: %v", err)
		}
	}
}

func testRemoveDir(t *testing.T, s remote.Storage) {
	remover, ok := s.(remote.DirRemover)
	if !ok {
		t.Skip("not a DirRemover")
	}
	put(t, s, "up/one/a", []byte("x"))
	put(t, s, "up/two/b", []byte("x"))
	if err := s.Delete(t.Context(), "up/one/a"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"up/one", "up/one", "up/two", "up", "never"} {
		if err := remover.RemoveDir(t.Context(), dir); err != nil {
			t.Errorf("RemoveDir(%s): %v", dir, err)
		}
	}
	if got := list(t, s, "up"); len(got) != 1 || got[0].Name != "two" {
		t.Errorf("directories %v, want that which holds something", got)
	}
	wantGet(t, s, "up/two/b", []byte("x"), 0, -1)
	if syncer, ok := s.(remote.Syncer); ok {
		if err := syncer.Sync(t.Context()); err != nil {
			t.Errorf("Sync after a directory was removed: %v", err)
		}
	}
}

func testLarge(t *testing.T, s remote.Storage) {
	data := Bytes(20<<20+1, 4)
	put(t, s, name(4), data)
	wantGet(t, s, name(4), data, 0, -1)
	wantGet(t, s, name(4), data, 16<<20-1, 1<<20)
}

// testConcurrent lets several writers put the same objects while others read.
func testConcurrent(t *testing.T, s remote.Storage) {
	const workers, objects = 8, 24
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range objects {
				n := name((w*5 + i) % objects)
				data := Bytes(5000, uint64((w*5+i)%objects))
				if err := s.Put(t.Context(), n, data); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
				if got, err := s.Get(t.Context(), n, 100, 4000); err != nil || !bytes.Equal(got, data[100:4100]) {
					t.Errorf("Get after Put: %d bytes, %v", len(got), err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range objects {
		wantGet(t, s, name(i), Bytes(5000, uint64(i)), 0, -1)
	}
}
