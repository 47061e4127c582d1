package store

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

// openTestDB opens an empty database whose transactions are small.
func openTestDB(t testing.TB, dir string) *badger.DB {
	t.Helper()
	db, err := badger.Open(badger.DefaultOptions(dir).WithLogger(nil).WithMemTableSize(1 << 20).WithValueThreshold(1 << 10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// randomTable returns a table of n chunks of a new multichunk, at places that differ.
func randomTable(rng *rand.Rand, n int) (Name, []TableEntry) {
	name := Name(randomBytes(rng, 16))
	table := make([]TableEntry, n)
	for i := range table {
		h := Hint{Multichunk: name, Off: uint32(prefixSize + i/50*1000), Len: 1000}
		table[i] = TableEntry{ID: randomID(rng), Len: uint32(rng.IntN(MaxChunk)), Hint: h}
	}
	return name, table
}

// indexModel is what an Index should know: the last place of each chunk, and the tables that are in.
type indexModel struct {
	places map[ID]Hint
	tables map[Name][]TableEntry
}

func (m *indexModel) check(t *testing.T, x *Index, ids []ID, names []Name) {
	t.Helper()
	for _, id := range ids {
		want, wantFound := m.places[id]
		if h, found, err := x.Get(id); err != nil || found != wantFound || h != want {
			t.Fatalf("Get = %v, %v, %v, want %v, %v", h, found, err, want, wantFound)
		}
		if found, err := x.Has(id); err != nil || found != wantFound {
			t.Fatalf("Has = %v, %v, want %v", found, err, wantFound)
		}
	}
	for _, n := range names {
		_, want := m.tables[n]
		if known, err := x.Known(n); err != nil || known != want {
			t.Fatalf("Known = %v, %v, want %v", known, err, want)
		}
	}
}

// TestIndex adds and forgets random tables that share chunks, reopens the index, and compares with a map.
func TestIndex(t *testing.T) {
	rng := newRand(t)
	db := openTestDB(t, t.TempDir())
	x := NewIndex(db, nil)
	m := indexModel{map[ID]Hint{}, map[Name][]TableEntry{}}
	ids, names := []ID{{}, {1}}, []Name{{1}}
	for range 60 {
		switch n := rng.IntN(4); {
		case n == 0 && len(names) > 1: // forget one, perhaps again
			name := names[rng.IntN(len(names))]
			if err := x.Forget(name); err != nil {
				t.Fatal(err)
			}
			for _, e := range m.tables[name] {
				if m.places[e.ID].Multichunk == name {
					delete(m.places, e.ID)
				}
			}
			delete(m.tables, name)
		case n == 1:
			x = NewIndex(db, nil)
		default: // add one, or one that was there before
			name, table := randomTable(rng, rng.IntN(300))
			for i := range table {
				if rng.IntN(3) == 0 {
					table[i].ID = ids[rng.IntN(len(ids))]
				}
			}
			if len(names) > 1 && rng.IntN(3) == 0 {
				if old := names[1+rng.IntN(len(names)-1)]; m.tables[old] != nil {
					name, table = old, m.tables[old]
				}
			}
			if err := x.AddTable(name, table); err != nil {
				t.Fatal(err)
			}
			m.tables[name] = table
			names = append(names, name)
			for _, e := range table {
				m.places[e.ID] = e.Hint
				ids = append(ids, e.ID)
			}
		}
		m.check(t, x, ids, names)
	}
}

// TestIndexLargeTable adds and forgets a table of more chunks than one transaction takes.
func TestIndexLargeTable(t *testing.T) {
	rng := newRand(t)
	db := openTestDB(t, t.TempDir())
	x := NewIndex(db, nil)
	name, table := randomTable(rng, 40000)
	for range 2 {
		if err := x.AddTable(name, table); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(table); i += 1000 {
			if h, ok, err := x.Get(table[i].ID); err != nil || !ok || h != table[i].Hint {
				t.Fatalf("Get = %v, %v, %v, want %v", h, ok, err, table[i].Hint)
			}
		}
		if err := x.Forget(name); err != nil {
			t.Fatal(err)
		}
		if n := countKeys(t, db); n != 1 {
			t.Errorf("%d keys are left after Forget, want 1, the next number", n)
		}
	}
}

func countKeys(t *testing.T, db *badger.DB) (n int) {
	t.Helper()
	err := db.View(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestIndexBrokenOff checks that a table of which only a part was added is not known, can be added again, and can be
// forgotten without a trace.
func TestIndexBrokenOff(t *testing.T) {
	rng := newRand(t)
	for _, finish := range []bool{true, false} {
		t.Run(fmt.Sprint(finish), func(t *testing.T) {
			db := openTestDB(t, t.TempDir())
			x := NewIndex(db, nil)
			name, table := randomTable(rng, 3000)
			breakOff(t, x, name, table)
			if known, err := x.Known(name); err != nil || known {
				t.Errorf("Known = %v, %v, want false", known, err)
			}
			if finish {
				if err := x.AddTable(name, table); err != nil {
					t.Fatal(err)
				}
				if known, err := x.Known(name); err != nil || !known {
					t.Errorf("Known after AddTable = %v, %v, want true", known, err)
				}
			}
			if err := x.Forget(name); err != nil {
				t.Fatal(err)
			}
			if n := countKeys(t, db); n != 1 {
				t.Errorf("%d keys are left after Forget, want 1, the next number", n)
			}
		})
	}
}

// breakOff does of AddTable what is done when the machine stops in the middle.
func breakOff(t *testing.T, x *Index, n Name, table []TableEntry) {
	t.Helper()
	if err := x.readState(); err != nil {
		t.Fatal(err)
	}
	number, _, err := x.begin(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.batch(func(wb *badger.WriteBatch) error { return setParts(wb, number, table) }); err != nil {
		t.Fatal(err)
	}
	err = x.batch(func(wb *badger.WriteBatch) error {
		for _, e := range table[:len(table)/2] {
			if err := wb.Set(chunkKey(e.ID), appendPlace(nil, place{number, e.Hint.Off, e.Hint.Len})); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzParsePlace checks that the value of a chunk has one encoding.
func FuzzParsePlace(f *testing.F) {
	f.Add(appendPlace(nil, place{1, 2, 3}))
	f.Add(appendPlace(nil, place{1<<32 - 1, 1 << 20, 1 << 14}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePlace(b)
		if err != nil {
			return
		}
		if again := appendPlace(nil, p); string(again) != string(b) {
			t.Fatalf("%x is encoded again as %x", b, again)
		}
	})
}

func BenchmarkIndex(b *testing.B) {
	rng := rand.New(rand.NewPCG(11, 12))
	db, err := badger.Open(badger.DefaultOptions(b.TempDir()).WithLogger(nil).WithMemTableSize(8 << 20).WithBlockCacheSize(16 << 20).WithIndexCacheSize(16 << 20))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	x := NewIndex(db, nil)
	var last []TableEntry
	for range 300 {
		name, table := randomTable(rng, 1000)
		if err := x.AddTable(name, table); err != nil {
			b.Fatal(err)
		}
		last = table
	}
	b.Run("has/not", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			id := randomID(rng)
			if found, err := x.Has(id); err != nil || found {
				b.Fatal(found, err)
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			if _, found, err := x.Get(last[i%len(last)].ID); err != nil || !found {
				b.Fatal(found, err)
			}
		}
	})
	b.Run("add", func(b *testing.B) {
		for b.Loop() {
			name, table := randomTable(rng, 1000)
			if err := x.AddTable(name, table); err != nil {
				b.Fatal(err)
			}
		}
	})
}
