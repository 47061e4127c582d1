package cache_test

import (
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// TestPublishedNodesStay looks for nodes in memory after they have been published: there they have hints.
func TestPublishedNodesStay(t *testing.T) {
	f := newFixture(t)
	f.open()
	root := f.commit(f.addRandom(50, 300), "n")
	if n := f.c.NodeInMemoryForTest(root.ID); n == nil {
		t.Fatal("a node that was saved just now is not in memory")
	}
	p := f.publish()
	n := f.c.NodeInMemoryForTest(root.ID)
	if n == nil {
		t.Fatal("a node that was published just now is not in memory")
	}
	for _, e := range n.Entries {
		for _, ref := range e.Refs {
			if ref.Hint.IsZero() || ref.Hint != f.c.HintIn(p, ref) {
				t.Errorf("%v has hint %v, it lies at %v", ref.ID, ref.Hint, f.c.HintIn(p, ref))
			}
		}
	}
}

// TestBusyWriter publishes again and again while there is always a later local commit, as when somebody never stops writing.
// What is kept for that commit stays little, each multichunk is announced once, and all can be read without the database.
func TestBusyWriter(t *testing.T) {
	f := newFixture(t)
	f.open()
	announced := make(map[store.Name]int)
	all := f.addRandom(1, 3000)
	f.commit(all, "x")
	for range 30 {
		p, err := f.c.PackForPublication(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range p.Multichunks {
			announced[m.Name]++
		}
		all = append(all, f.addRandom(8, 3000)...)
		f.commit(all, "x") // its leaves are those of the one before, which are being published
		if err := f.c.Published(p); err != nil {
			t.Fatal(err)
		}
		if kept := f.receipts(); kept > 4 {
			t.Fatalf("%d receipts are kept after a publication", kept)
		}
	}
	for n, times := range announced {
		if times > 1 {
			t.Errorf("%v is announced %d times", n, times)
		}
	}
	if base, err := f.disk.Open("base"); err != nil {
		t.Fatal(err)
	} else if size, _ := base.Size(); size > 4000 {
		t.Errorf("base has %d bytes", size)
	}
	f.reopen() // the database in memory is gone
	f.c.EvictAllForTest()
	root, _, _, _, _, _, _ := f.c.LastCommit()
	f.checkTree(f.c, root, all, "x")
	p := f.publish()
	f.checkTree(f.reader(), p.Root, all, "x")
}

func (f *fixture) receipts() int {
	list, err := f.disk.List("uploaded")
	if err != nil {
		f.t.Fatal(err)
	}
	return len(list)
}
