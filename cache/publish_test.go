package cache_test

import "testing"

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
