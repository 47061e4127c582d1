package fs

import (
	"fmt"
	"maps"
	"math/rand"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// noise returns bytes that are stored as they are.
func noise(seed int64, n int) string {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return string(b)
}

const largeFile = 96 << 10 // bytes, in these tests

// TestEarly has a small file published before a large one whose data waits, and looks from another machine.
func TestEarly(t *testing.T) {
	old, now := noise(1, largeFile), noise(2, 2*largeFile)
	fsync := func(e *env, path ...string) {
		e.t.Helper()
		h, err := e.v.Open(ctx, e.walk(path...), 0, Cred{})
		if err != nil {
			e.t.Fatal(err)
		}
		defer h.Release()
		if err := h.Fsync(ctx, false); err != nil {
			e.t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(e *env)
		before map[string]string // what others see while the large file waits; nil if that is nothing new
	}{
		{"new", func(e *env) { e.overwrite("new", now) }, map[string]string{"large": old, "saved": old}},
		{"changed", func(e *env) { e.overwrite("large", now) }, map[string]string{"large": old, "saved": old}},
		{"appended", func(e *env) { e.write("large", int64(len(old)), []byte(now)) }, map[string]string{"large": old, "saved": old}},
		{"saved by renaming", func(e *env) {
			e.overwrite("temp", now)
			e.rename("temp", "saved")
		}, map[string]string{"large": old, "saved": old}},
		{"removed and made", func(e *env) {
			e.remove("saved")
			e.overwrite("saved", now)
		}, map[string]string{"large": old, "saved": old}},
		{"two names", func(e *env) {
			e.overwrite("new", now)
			if _, err := e.v.Link(ctx, e.walk("new"), Root, []byte("link")); err != nil {
				e.t.Fatal(err)
			}
		}, map[string]string{"large": old, "saved": old}},
		{"another one removed", func(e *env) {
			e.overwrite("new", now)
			e.remove("large")
		}, map[string]string{"saved": old}},
		{"open without a name", func(e *env) {
			_, h, err := e.v.Create(ctx, Root, []byte("temp"), syscall.O_RDWR, 0o644, Cred{})
			if err != nil {
				e.t.Fatal(err)
			}
			e.t.Cleanup(h.Release)
			if _, err := h.Write(ctx, []byte(now), 0); err != nil {
				e.t.Fatal(err)
			}
			if err := e.v.Unlink(ctx, Root, []byte("temp")); err != nil {
				e.t.Fatal(err)
			}
		}, map[string]string{"large": old, "saved": old}},
		{"synced", func(e *env) {
			e.overwrite("new", now)
			fsync(e, "new")
		}, nil},
		{"directory synced", func(e *env) {
			e.overwrite("new", now)
			if err := e.v.Fsyncdir(ctx, Root); err != nil {
				e.t.Fatal(err)
			}
		}, nil},
		{"for reading only", func(e *env) {
			e.overwrite("new", now)
			mode := uint32(0o444)
			if _, err := e.v.Setattr(ctx, e.walk("new"), nil, SetAttr{Mode: &mode}, Cred{}); err != nil {
				e.t.Fatal(err)
			}
		}, nil},
		{"changed and moved", func(e *env) {
			e.overwrite("large", now)
			e.rename("large", "moved")
		}, nil},
		{"the old one kept", func(e *env) {
			e.rename("saved", "saved~")
			e.overwrite("saved", now)
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newEnv(t)
			a.overwrite("large", old)
			a.overwrite("saved", old)
			a.sync()
			b := a.other()
			slow := a.openSlow()
			a.v.commits.early.late, a.v.commits.early.patience = largeFile, time.Hour
			a.v.commits.moment = 50 * time.Millisecond
			tt.change(a)
			a.commit()
			slow.waitHeld(t)
			a.overwrite("small", "small")
			a.snapshot("later")
			if err := a.v.commits.publishEarly(ctx); err != nil {
				t.Fatal(err)
			}
			b.sync()
			want := tt.before
			if want == nil {
				want = map[string]string{"large": old, "saved": old}
			} else {
				want["small"] = "small"
			}
			for name, data := range want {
				if got := string(b.read(name)); got != data {
					t.Errorf("others see %d bytes of %s, want %d: those that it had", len(got), name, len(data))
				}
			}
			if n := len(b.listing()); n != len(want) {
				t.Errorf("others see %d files, want %d", n, len(want))
			}
			if names := b.snapshotNames(); len(names) > 0 {
				t.Errorf("others see the snapshots %q, which have what is not there yet", names)
			}
			b.overwrite("other", "from b")
			b.sync()
			if err := a.v.follower.tick(ctx); err != nil {
				t.Fatal(err)
			}
			wantState := map[bool]string{true: "remote", false: "local"}[tt.before != nil]
			if state, err := a.v.contentState(ctx, a.walk("small")); err != nil || string(state) != wantState {
				t.Errorf("the state of the small file is %q, %v, want %q", state, err, wantState)
			}
			here := a.listing()
			slow.open()
			if all := agree(t, a, b); !maps.Equal(all, here) {
				t.Errorf("in the end there is %d, want what was written: %d", len(all), len(here))
			}
			if names := b.snapshotNames(); !slices.Equal(names, []string{"later"}) {
				t.Errorf("in the end others see the snapshots %q", names)
			}
			a.checkWhole()
		})
	}
}

// TestEarlyMany has a small file published before so many that are not large that they take long.
func TestEarlyMany(t *testing.T) {
	a := newEnv(t)
	a.sync()
	b := a.other()
	slow := a.openSlow()
	a.v.commits.early.late, a.v.commits.early.patience = largeFile, time.Hour
	for i := range 50 {
		a.overwrite(fmt.Sprint("photo", i), noise(int64(i), largeFile/7))
	}
	a.commit()
	slow.waitHeld(t)
	a.overwrite("small", "small")
	a.commit()
	if err := a.v.commits.publishEarly(ctx); err != nil {
		t.Fatal(err)
	}
	b.sync()
	if names := b.names(Root); !slices.Equal(names, []string{"small"}) {
		t.Errorf("others see %q", names)
	}
	slow.open()
	agree(t, a, b)
}

// TestEarlyAcknowledges has early commits say nothing of what is to be deleted that they cannot know.
func TestEarlyAcknowledges(t *testing.T) {
	a := newEnv(t)
	a.overwrite("gone", noise(3, 4*largeFile))
	a.sync()
	a.remove("gone")
	a.sync()
	b := a.other()
	slow := a.openSlow()
	a.v.commits.early.late, a.v.commits.early.patience = largeFile, time.Hour
	a.overwrite("new", noise(4, 4*largeFile)+noise(3, 4*largeFile)) // of which the second half is stored already
	a.commit()
	slow.waitHeld(t)
	if _, err := b.v.Collect(ctx, CollectOptions{AllowMost: true}, nil); err != nil {
		t.Fatal(err)
	}
	a.overwrite("small", "small")
	a.commit()
	if err := a.v.follower.tick(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.v.commits.publishEarly(ctx); err != nil {
		t.Fatal(err)
	}
	b.sync()
	if got := string(b.read("small")); got != "small" {
		t.Fatalf("small: %q", got)
	}
	if last, err := a.v.member.last(ctx); err != nil || len(last.Acks) > 0 {
		t.Errorf("an early commit acknowledges %v, %v", last.Acks, err)
	}
	if _, err := b.v.Collect(ctx, CollectOptions{AllowMost: true}, nil); err != nil {
		t.Fatal(err)
	}
	slow.open()
	agree(t, a, b)
	if _, err := b.v.Collect(ctx, CollectOptions{AllowMost: true}, nil); err != nil {
		t.Fatal(err)
	}
	if got := b.read("new"); string(got) != noise(4, 4*largeFile)+noise(3, 4*largeFile) {
		t.Error("the large file differs")
	}
	b.checkWhole()
}

// earlyClient is a client of a history: what it has written, and how it reaches the remote.
type earlyClient struct {
	*env
	slow  *slowPuts
	shown map[string]bool // contents that it showed when somebody last looked
}

func (c *earlyClient) openSlow() {
	c.slow = c.env.openSlow()
	c.slow.open()
	c.slow.lag = 4 * time.Millisecond
	c.v.commits.moment = 5 * time.Millisecond
	e := c.v.commits.early
	e.late, e.patience, e.every = largeFile/2, time.Millisecond, 2*time.Millisecond
}

// earlyHistory is what clients do to each other.
type earlyHistory struct {
	t       *testing.T
	r       *rand.Rand
	n       int
	written map[string]bool // contents, by what tells one from another
	taken   map[string]bool // those that a client has replaced or removed
	early   int             // early commits
	cuts    int             // power cuts while something was not published
}

// tag returns what tells a content from others.
func tag(data []byte) string { return string(data[:min(len(data), 40)]) }

func (h *earlyHistory) content(c *earlyClient, large bool) string {
	h.n++
	s := fmt.Sprintf("%-40s", fmt.Sprintf("%d by %v", h.n, c.v.me))
	if large {
		s += noise(int64(h.n), largeFile/2+h.r.Intn(largeFile/2))
	}
	h.written[tag([]byte(s))] = true
	return s
}

// take notes that a client takes away what it has under a name, and reports whether there is something.
func (h *earlyHistory) take(c *earlyClient, name string) bool {
	a, err := c.v.Lookup(ctx, Root, []byte(name))
	if err != nil {
		return false
	}
	c.v.Forget(a.Ino, 1)
	h.taken[tag(c.read(name))] = true
	return true
}

// step has a client do something.
func (h *earlyHistory) step(c *earlyClient) {
	r := h.r
	name := fmt.Sprint("f", r.Intn(6))
	switch r.Intn(17) {
	case 0, 1, 2:
		h.take(c, name)
		c.overwrite(name, h.content(c, false))
	case 3, 4:
		h.take(c, name)
		c.overwrite(name, h.content(c, true))
	case 5:
		c.overwrite("temp"+c.v.me.String(), h.content(c, r.Intn(2) == 0))
		h.take(c, name)
		c.rename("temp"+c.v.me.String(), name)
	case 6:
		if h.take(c, name) {
			c.remove(name)
		}
	case 7:
		if to := fmt.Sprint("f", r.Intn(6)); to != name {
			if a, err := c.v.Lookup(ctx, Root, []byte(name)); err == nil {
				c.v.Forget(a.Ino, 1)
				h.take(c, to)
				c.rename(name, to)
			}
		}
	case 8, 9:
		c.commit()
	case 10, 11, 12:
		if err := c.v.follower.tick(ctx); err != nil {
			h.t.Fatal(err)
		}
	case 13, 16:
		c.slow.shut()
	case 14:
		c.slow.open()
	case 15:
		h.powerCut(c)
	}
	h.look(c)
}

// look wants on a client only contents that somebody has written, and all that it has shown before and that nobody has taken away.
func (h *earlyHistory) look(c *earlyClient) {
	now := map[string]bool{}
	for name, shown := range c.listing() {
		content := tag([]byte(shown[1:]))
		now[content] = true
		if strings.HasPrefix(name, "/f") && !h.written[content] {
			h.t.Errorf("%s is no content that somebody has written: %.50s", name, shown)
		}
	}
	for content := range c.shown {
		if !now[content] && !h.taken[content] {
			h.t.Errorf("%q is not there any more, though nobody has taken it away", content)
		}
	}
	c.shown = now
}

// powerCut cuts the power of a client that has everything on its disk.
func (h *earlyHistory) powerCut(c *earlyClient) {
	h.countEarly(c)
	if !c.v.isClean() {
		h.cuts++
	}
	if err := c.v.log.Sync(c.v.log.End()); err != nil {
		h.t.Fatal(err)
	}
	c.env.powerCut(h.r)
	c.openSlow()
}

// countEarly counts the early commits of a client: those whose state is not one of a local commit.
func (h *earlyHistory) countEarly(c *earlyClient) {
	if c.v.commits.early.root.Load() != nil {
		h.early++
	}
}

// TestEarlyHistories has three clients change the same files, small and large, and follow each other while uploads stand still or go
// on, with early commits before them, power cuts and listings that are behind. In the end all show the same, and nothing is lost.
func TestEarlyHistories(t *testing.T) {
	n := 30
	if os.Getenv("DEDUPFS_LONG") != "" {
		n = 1000
	}
	r := newRand(t)
	early, cuts := 0, 0
	for i := range n {
		seed := r.Int63()
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			h := &earlyHistory{t: t, r: rand.New(rand.NewSource(seed)), written: map[string]bool{}, taken: map[string]bool{}}
			h.run()
			early, cuts = early+h.early, cuts+h.cuts
		})
	}
	t.Logf("%d early commits were the newest when somebody looked, %d power cuts with something at stake", early, cuts)
	if early < n/4 || cuts < n/4 {
		t.Errorf("%d early commits and %d power cuts: too few to show anything", early, cuts)
	}
}

func (h *earlyHistory) run() {
	t, r := h.t, h.r
	first := newEnv(t)
	first.sync()
	var all []*earlyClient
	var envs []*env
	for i := range 3 {
		c := &earlyClient{env: first}
		if i > 0 {
			c.env = first.other()
		}
		c.openSlow()
		all, envs = append(all, c), append(envs, c.env)
	}
	for range 40 {
		c := all[r.Intn(len(all))]
		first.st.SetListingLag(time.Duration(r.Intn(3)) * time.Millisecond)
		h.step(c)
		h.countEarly(c)
		time.Sleep(time.Duration(r.Intn(6)) * time.Millisecond) // for the background
	}
	first.st.SetListingLag(0)
	for _, c := range all {
		c.slow.open()
	}
	have := map[string]bool{}
	for _, data := range agree(t, envs...) {
		have[tag([]byte(data[1:]))] = true
	}
	for data := range h.written {
		if !have[data] && !h.taken[data] {
			t.Errorf("%q is lost: nobody has taken it away", data)
		}
	}
	first.checkWhole()
}
