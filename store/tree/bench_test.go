package tree

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/dedupfs/dedupfs/store"
)

// nullStore names nodes by a counter and keeps them: what is left of a benchmark's time is the tree's own.
type nullStore struct{ nodes []*store.Node }

func (s *nullStore) Load(_ context.Context, ref store.Ref) (*store.Node, error) {
	return s.nodes[binary.LittleEndian.Uint64(ref.ID[:])-1], nil
}

func (s *nullStore) Save(_ context.Context, n *store.Node) (store.Ref, error) {
	s.nodes = append(s.nodes, n)
	ref := store.Ref{Kind: store.RefNode}
	binary.LittleEndian.PutUint64(ref.ID[:], uint64(len(s.nodes)))
	return ref, nil
}

const benchRecords = 1_000_000

// benchTree returns a tree of a million records in memory.
func benchTree(b *testing.B) *Tree {
	b.Helper()
	tr := mustBuild(b, New(&nullStore{}, store.Ref{}, Options{}), inodeRecords(benchRecords))
	b.ReportAllocs()
	b.ResetTimer()
	return tr
}

func BenchmarkGet(b *testing.B) {
	tr := benchTree(b)
	rnd := rand.New(rand.NewPCG(1, 1))
	key := inodeKey(0)
	for b.Loop() {
		binary.BigEndian.PutUint64(key, 1<<32+rnd.Uint64N(benchRecords))
		if _, ok, err := tr.Get(b.Context(), key); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	tr := benchTree(b)
	it := tr.Seek(b.Context(), nil)
	for b.Loop() {
		if !it.Next(b.Context()) {
			it = tr.Seek(b.Context(), nil)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tr := benchTree(b)
			st := tr.st.(*nullStore)
			built := len(st.nodes)
			edits := randomChanges(rand.New(rand.NewPCG(1, 1)), benchRecords, n)
			b.ResetTimer()
			for b.Loop() {
				mustApply(b, tr, edits)
				st.nodes = st.nodes[:built]
			}
		})
	}
}

// BenchmarkBuild is per record.
func BenchmarkBuild(b *testing.B) {
	records := slices.Collect(inodeRecords(100_000))
	tr := New(&nullStore{}, store.Ref{}, Options{})
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(records) {
		tr.st.(*nullStore).nodes = nil
		if _, err := tr.Build(b.Context(), slices.Values(records[:min(len(records), b.N-n)])); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDiff(b *testing.B) {
	tr := benchTree(b)
	other := mustApply(b, tr, randomChanges(rand.New(rand.NewPCG(1, 1)), benchRecords, 100))
	b.ResetTimer()
	for b.Loop() {
		if n := len(diff(b, tr, other)); n != 100 {
			b.Fatal(n)
		}
	}
}

// randomChanges returns edits of n random records among the first of inodeRecords.
func randomChanges(rnd *rand.Rand, among, n int) []Edit {
	at := map[int]bool{}
	for len(at) < n {
		at[rnd.IntN(among)] = true
	}
	var edits []Edit
	for i := range at {
		e := inodeRecord(i, 1)
		edits = append(edits, Edit{e.Key, &e})
	}
	slices.SortFunc(edits, func(a, b Edit) int { return slices.Compare(a.Key, b.Key) })
	return edits
}

// BenchmarkNodeSize is the measurement behind the default sizes (docs/tree.md): what one commit writes, by size of nodes,
// kind and number of records, and number of edits at random places.
func BenchmarkNodeSize(b *testing.B) {
	if testing.Short() {
		b.Skip("takes a minute")
	}
	for _, kind := range []struct {
		name   string
		record func(i, version int) store.Entry
	}{{"inodes", inodeRecord}, {"content", contentRecord}} {
		for _, records := range []int{10_000, 100_000, 1_000_000} {
			for _, target := range []int{2 << 10, 4 << 10, 8 << 10, 16 << 10} {
				b.Run(fmt.Sprintf("%s/%d/target=%d", kind.name, records, target), func(b *testing.B) {
					measureCommits(b, kind.record, records, target)
				})
			}
		}
	}
}

// contentRecord is like one of a file's content: an offset, a length and a chunk.
func contentRecord(i, version int) store.Entry {
	rnd := rand.New(rand.NewPCG(uint64(i), uint64(version)))
	e := store.Entry{Key: binary.BigEndian.AppendUint64(nil, uint64(i)*8192+rnd.Uint64N(4096)*uint64(min(1, version^1)))}
	e.Value = binary.AppendUvarint(nil, 4096+rnd.Uint64N(8192))
	e.Refs = make([]store.Ref, 1)
	fillID(rnd, &e.Refs[0].ID)
	return e
}

// hintOf returns a hint like that of the i-th of many nodes or chunks: 64 share a group, 1024 a multichunk.
func hintOf(i int) store.Hint {
	rnd := rand.New(rand.NewPCG(uint64(i/1024), 4))
	h := store.Hint{Off: uint32(i) / 64 % 16 * 300_000, Len: 300_000}
	binary.LittleEndian.PutUint64(h.Multichunk[:], rnd.Uint64())
	binary.LittleEndian.PutUint64(h.Multichunk[8:], rnd.Uint64())
	return h
}

// sizeStore encodes what it keeps, and adds up what one commit writes.
type sizeStore struct {
	nullStore
	zw            *zstd.Encoder
	saves         int
	plain, packed int
	group         []byte
}

func (s *sizeStore) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	ref, err := s.nullStore.Save(ctx, n)
	fillID(rand.New(rand.NewPCG(uint64(len(s.nodes)), 3)), &ref.ID)
	binary.LittleEndian.PutUint64(ref.ID[:], uint64(len(s.nodes)))
	ref.Hint = hintOf(len(s.nodes))
	if s.zw != nil {
		s.saves++
		s.group = store.AppendNode(s.group, n)
	}
	return ref, err
}

func measureCommits(b *testing.B, record func(i, version int) store.Entry, records, target int) {
	st := &sizeStore{}
	all := func(yield func(store.Entry) bool) {
		for i := range records {
			e := record(i, 0)
			e.Refs[0].Hint = hintOf(i)
			if !yield(e) {
				return
			}
		}
	}
	tr := mustBuild(b, New(st, store.Ref{}, Options{Min: target / 4, Target: target, Max: min(8*target, store.MaxNode/2)}), all)
	st.zw, _ = zstd.NewWriter(nil)
	built := len(st.nodes)
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 4, 100} {
		st.saves, st.plain, st.packed = 0, 0, 0
		commits := 200 / n * 2
		for range commits {
			st.group = st.group[:0]
			var edits []Edit
			for i := range n {
				at := records/n*i + rnd.IntN(records/n)
				e := record(at, 0)
				fillID(rnd, &e.Refs[0].ID)
				e.Refs[0].Hint = hintOf(-1)
				edits = append(edits, Edit{e.Key, &e})
			}
			mustApply(b, tr, edits)
			st.plain += len(st.group)
			st.packed += len(st.zw.EncodeAll(st.group, nil))
			st.nodes = st.nodes[:built]
		}
		b.ReportMetric(float64(st.saves)/float64(commits), fmt.Sprintf("nodes/%d", n))
		b.ReportMetric(float64(st.plain)/float64(commits)/1024, fmt.Sprintf("KiB/%d", n))
		b.ReportMetric(float64(st.packed)/float64(commits)/1024, fmt.Sprintf("zstdKiB/%d", n))
	}
	b.ReportMetric(float64(st.nodes[built-1].Level)+1, "levels")
	b.ReportMetric(0, "ns/op")
}
