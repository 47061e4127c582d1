package fs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// slowPuts is a remote that takes no large multichunk while its gate is shut.
type slowPuts struct {
	*plug
	held chan struct{} // has one when a multichunk waits
	lag  time.Duration // the longest that any object takes

	mu   sync.Mutex    // guards gate
	gate chan struct{} // closed while it is open
}

func (s *slowPuts) Put(ctx context.Context, name string, data []byte) error {
	if strings.HasPrefix(name, "data/") && len(data) > 32<<10 {
		s.mu.Lock()
		gate := s.gate
		s.mu.Unlock()
		select {
		case <-gate:
		default:
			select {
			case s.held <- struct{}{}: // it waits
			default:
			}
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if s.lag > 0 {
		sleep(ctx, rand.N(s.lag))
	}
	return s.plug.Put(ctx, name, data)
}

// open lets everything through.
func (s *slowPuts) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isShut() {
		close(s.gate)
	}
}

// shut holds large multichunks from now on.
func (s *slowPuts) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isShut() {
		s.gate = make(chan struct{})
	}
}

func (s *slowPuts) isShut() bool {
	select {
	case <-s.gate:
		return false
	default:
		return true
	}
}

// openSlow opens e's client anew on a remote whose uploads wait.
func (e *env) openSlow() *slowPuts {
	e.t.Helper()
	e.close()
	e.wire = &plug{Mem: e.st}
	s := &slowPuts{plug: e.wire, gate: make(chan struct{}), held: make(chan struct{}, 1)}
	e.repo = storetest.Open(e.t, s)
	copt := e.copt
	copt.Files, copt.Segment = e.disk, 4<<20
	var err error
	if e.ca, err = cache.Open(context.Background(), "", e.repo, &copt); err != nil {
		e.t.Fatal(err)
	}
	if e.v, err = Open(context.Background(), e.ca, e.repo, &e.opt); err != nil {
		e.t.Fatal(err)
	}
	return s
}

// waitHeld returns when a large multichunk waits.
func (s *slowPuts) waitHeld(t testing.TB) {
	t.Helper()
	select {
	case <-s.held:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing large is uploaded")
	}
}

// TestFollowBesideUpload follows others while much is being uploaded here. What is published in the middle must not say that it has what
// was merged meanwhile, and nothing of either side may be missing at the end.
func TestFollowBesideUpload(t *testing.T) {
	a := newEnv(t)
	a.overwrite("both", "base")
	a.overwrite("gone", "base")
	a.sync()
	b := a.other()
	slow := b.openSlow()
	large := make([]byte, 3<<20)
	copy(large, noise(1, len(large)))
	b.write("large", 0, large)
	b.overwrite("both", "from b")
	if err := b.v.commits.commit(ctx, nil); err != nil {
		t.Fatal(err)
	}
	slow.waitHeld(t)
	for i := range 3 {
		a.overwrite(fmt.Sprint("small", i), "small")
		if i == 1 {
			a.overwrite("both", "from a")
			a.remove("gone")
		}
		a.sync()
		if err := b.v.follower.tick(ctx); err != nil {
			t.Fatal(err)
		}
		if got := string(b.read(fmt.Sprint("small", i))); got != "small" {
			t.Errorf("beside an upload, what another has published reads %q", got)
		}
		b.overwrite(fmt.Sprint("later", i), "later")
	}
	if b.v.allPublished() {
		t.Fatal("all is published: this shows nothing")
	}
	// The first to reach the remote is what was committed before any of that.
	slow.open()
	deadline := time.Now().Add(20 * time.Second)
	for !b.v.allPublished() && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	b.seenIsThere(a, "small0")
	all := agree(t, a, b)
	want := 1 + 3 + 3 + 2 // the large one, those of both, and both with its copy
	if len(all) != want || all["/gone"] != "" || all["/small0"] == "" || all["/later2"] == "" {
		names := []string{}
		for name := range all {
			names = append(names, name)
		}
		t.Errorf("in the end there are %q, want %d", names, want)
	}
	if got := a.read("large"); string(got) != string(large) {
		t.Error("the large file differs")
	}
	b.reopen()
	agree(t, a, b)
}

// seenIsThere fails if a commit of e says that it has what o published, and lacks the file name, which came with o's second commit. It
// wants both kinds to be there.
func (e *env) seenIsThere(o *env, name string) {
	e.t.Helper()
	kinds := map[bool]int{}
	for h := e.v.ca.State().Head; !h.IsZero(); {
		c, err := e.repo.GetCommit(ctx, h)
		if err != nil {
			e.t.Fatal(err)
		}
		seen := historyOf(c)[chainOf(o.v.ca.State().Head)].Seq > 1
		_, err = e.v.resolvePath(ctx, e.v.stateAt(c.Root), name)
		if (err == nil) != seen {
			e.t.Errorf("commit %d has seen %s: %v; it has it: %v", c.Seq, name, seen, err)
		}
		kinds[seen]++
		if h.Seq, h.Hash = c.Seq-1, c.Prev; h.Seq == 0 {
			break
		}
	}
	if kinds[true] == 0 || kinds[false] == 0 {
		e.t.Errorf("commits that have seen %s, and that have not: %v; this shows nothing", name, kinds)
	}
}
