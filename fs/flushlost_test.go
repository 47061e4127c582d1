package fs

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// multichunks returns those with the chunks of a file, in the order of the file.
func (e *env) multichunks(name string) (names []store.Name) {
	e.t.Helper()
	seen := map[store.Name]bool{}
	for _, c := range e.chunksOf(name) {
		if n := c.ref.Hint.Multichunk; !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	return names
}

func (e *env) contentOf(name string) (m *extentMap) {
	e.t.Helper()
	ino := e.walk(name)
	err := e.v.view(ctx, func(r *layered) (err error) {
		m, err = loadExtentMap(ctx, r, ino)
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return m
}

func (e *env) chunksOf(name string) (cs []chunkAt) {
	e.t.Helper()
	err := e.v.contentReader(*e.contentOf(name)).chunks(ctx, 0, func(c chunkAt) bool { cs = append(cs, c); return true })
	if err != nil {
		e.t.Fatal(err)
	}
	return cs
}

// lose deletes objects on the remote, and returns what brings them back.
func (e *env) lose(names ...store.Name) (restore func()) {
	e.t.Helper()
	was := map[string][]byte{}
	for _, n := range names {
		name := store.ObjectName(n)
		b, err := e.st.Get(ctx, name, 0, -1)
		if err == nil {
			err = e.st.Delete(ctx, name)
		}
		if err != nil {
			e.t.Fatal(err)
		}
		was[name] = b
	}
	return func() {
		for name, b := range was {
			if err := e.st.Put(ctx, name, b); err != nil {
				e.t.Fatal(err)
			}
		}
	}
}

// part reads n bytes of a file from off on.
func (e *env) part(name string, off, n int64) ([]byte, error) {
	e.t.Helper()
	h, err := e.v.Open(ctx, e.walk(name), 0, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer h.Release()
	b := make([]byte, n)
	got, err := h.Read(ctx, b, off)
	return b[:got], err
}

func (e *env) truncate(name string, size int64) {
	e.t.Helper()
	n := uint64(size)
	if _, err := e.v.Setattr(ctx, e.walk(name), nil, SetAttr{Size: &n}, Cred{}); err != nil {
		e.t.Fatal(err)
	}
}

// newImpatientEnv is newEnv for a client that, from its next opening on, does not ask a remote for long.
func newImpatientEnv(t testing.TB) *env {
	t.Helper()
	e := newEnv(t)
	e.copt.RetryMin, e.copt.Offline = time.Millisecond, 10*time.Millisecond
	return e
}

func randomData(seed int64, n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

// TestOverwriteLost changes a file in what the remote has lost. All that is written reaches the remote, and so does what is written
// elsewhere; the rest reads again when somebody has stored it again.
func TestOverwriteLost(t *testing.T) {
	const size = 1 << 20
	tests := []struct {
		name   string
		change func(e *env, data []byte) []byte // returns the new content
		off, n int64                            // what was written: it has to be readable
		still  int64                            // where something has to be lost, and its neighbour too; -1 if nowhere
	}{
		{"4 KiB in the middle", func(e *env, data []byte) []byte {
			e.write("a", size/2+777, data[:4096])
			copy(data[size/2+777:], data[:4096])
			return data
		}, size/2 + 777, 4096, size/2 + 777 + 4096},
		{"one byte in front", func(e *env, data []byte) []byte {
			e.write("a", 0, []byte("x"))
			data[0] = 'x'
			return data
		}, 0, 1, 1},
		{"one byte appended", func(e *env, data []byte) []byte {
			e.write("a", size, []byte("x"))
			return append(data, 'x')
		}, size, 1, size - 1},
		{"4 KiB behind a hole", func(e *env, data []byte) []byte {
			e.write("a", size+1<<20, data[:4096])
			return append(append(data, make([]byte, 1<<20)...), data[:4096]...)
		}, size, 1<<20 + 4096, size - 1},
		{"truncated", func(e *env, data []byte) []byte {
			e.truncate("a", size/2+1)
			return data[:size/2+1]
		}, 0, 0, size / 2},
		{"truncated to one byte", func(e *env, data []byte) []byte {
			e.truncate("a", 1)
			return data[:1]
		}, 0, 0, 0},
		{"truncated to nothing", func(e *env, data []byte) []byte {
			e.truncate("a", 0)
			return nil
		}, 0, 0, -1},
		{"truncated and extended", func(e *env, data []byte) []byte {
			e.truncate("a", size/2+1)
			e.truncate("a", size)
			clear(data[size/2+1:])
			return data
		}, size/2 + 1, size/2 - 1, size / 2},
		{"written as a whole", func(e *env, data []byte) []byte {
			e.write("a", 0, data)
			return data
		}, 0, size, -1},
		{"every other 64 KiB", func(e *env, data []byte) []byte {
			for off := 0; off < size; off += 128 << 10 {
				e.write("a", int64(off), data[1:64<<10])
				copy(data[off:], append([]byte(nil), data[1:64<<10]...))
			}
			return data
		}, 0, 64<<10 - 1, 64<<10 - 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newImpatientEnv(t)
			before, other := randomData(1, size), randomData(2, size)
			e.write("a", 0, before)
			e.sync()
			e.write("b", 0, other)
			e.wipe()
			e.lose(e.multichunks("a")...)
			after := tt.change(e, bytes.Clone(before))
			e.write("b", 0, other[:size/2])
			e.write("c", 0, other[:100])
			h, err := e.v.Open(ctx, e.walk("a"), 2, Cred{})
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Fsync(ctx, false); err != nil {
				t.Errorf("Fsync = %v", err)
			}
			h.Release()
			check := func(when string) {
				t.Helper()
				if got := e.read("b"); !bytes.Equal(got, other) {
					t.Errorf("%s: other content of another file", when)
				}
				if got := e.read("c"); !bytes.Equal(got, other[:100]) {
					t.Errorf("%s: other content of a new file", when)
				}
				if got, err := e.part("a", tt.off, tt.n); err != nil || !bytes.Equal(got, after[tt.off:][:tt.n]) {
					t.Errorf("%s: read what was written: %v", when, err)
				}
				if a, err := e.v.Getattr(ctx, e.walk("a"), nil); err != nil || a.Size != uint64(len(after)) {
					t.Errorf("%s: size %d, %v, want %d", when, a.Size, err, len(after))
				}
				if tt.still < 0 {
					return
				}
				if _, err := e.part("a", tt.still, 1); !store.IsLost(err) {
					t.Errorf("%s: read what is lost: %v", when, err)
				}
			}
			check("before the commit")
			e.sync()
			check("after the commit")
			e.reopen()
			check("after a restart")
			e.wipe()
			check("on another machine")
			e.write("again", 0, before)
			e.sync()
			if got := e.read("a"); !bytes.Equal(got, after) {
				t.Error("does not read again after the same bytes have been stored again")
			}
			e.write("a", 0, before)
			e.truncate("a", size)
			e.wipe()
			if got := e.read("a"); !bytes.Equal(got, before) {
				t.Error("written as a whole: other content")
			}
			for _, c := range e.chunksOf("a") {
				if c.skip+c.rest > 0 {
					t.Errorf("written as a whole: still a part of a chunk at %d", c.off)
				}
			}
		})
	}
}

// TestChangeLostRandomly changes a file that is lost in places, in all ways, and compares it with a plain array: what was written
// reads at once and for ever, the rest gives an error or is right, and all is right when what was lost comes back.
func TestChangeLostRandomly(t *testing.T) {
	for range 4 {
		r := newRand(t)
		e := newImpatientEnv(t)
		var model []byte
		for range 4 { // each in a multichunk of its own
			b := make([]byte, 200_000+r.Intn(300_000))
			r.Read(b)
			e.write("a", int64(len(model)), b)
			model = append(model, b...)
			e.sync()
		}
		e.wipe()
		names := e.multichunks("a")
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		restore := e.lose(names[:1+r.Intn(len(names))]...)
		sure := make([]bool, len(model)) // these bytes do not come from what may be lost
		resize := func(n int) {
			for len(model) < n {
				model, sure = append(model, 0), append(sure, true)
			}
			model, sure = model[:n], sure[:n]
		}
		check := func() {
			t.Helper()
			for off := 0; off < len(model); {
				n := 1
				for n < 8192 && off+n < len(model) && sure[off+n] == sure[off] {
					n++
				}
				got, err := e.part("a", int64(off), int64(n))
				if err == nil && !bytes.Equal(got, model[off:off+n]) || err != nil && (sure[off] || !store.IsLost(err)) {
					t.Fatalf("%d bytes at %d of %d, written anew %v: %v", n, off, len(model), sure[off], err)
				}
				off += n
			}
		}
		for range 12 {
			for range 1 + r.Intn(3) {
				off, n := r.Intn(len(model)+1), 1+r.Intn(1<<(2+r.Intn(16)))
				switch r.Intn(8) {
				case 0:
					e.truncate("a", int64(off))
					resize(off)
				case 1:
					e.truncate("a", int64(off+n))
					resize(off + n)
				case 2:
					if n = min(n, len(model)-off); n == 0 {
						continue
					}
					h, err := e.v.Open(ctx, e.walk("a"), 2, Cred{})
					if err != nil {
						t.Fatal(err)
					}
					if err := h.Fallocate(ctx, fallocPunchHole|fallocKeepSize, int64(off), int64(n)); err != nil {
						t.Fatal(err)
					}
					h.Release()
					clear(model[off : off+n])
					for i := range n {
						sure[off+i] = true
					}
				default:
					b := make([]byte, n)
					r.Read(b)
					e.write("a", int64(off), b)
					resize(max(len(model), off+n))
					copy(model[off:], b)
					for i := range n {
						sure[off+i] = true
					}
				}
			}
			switch r.Intn(4) {
			case 0:
				e.commit()
			case 1:
				e.sync()
			case 2:
				e.reopen()
			case 3:
				e.powerCutAfterSync(r)
			}
			check()
		}
		e.wipe()
		check()
		restore()
		e.wipe()
		if got := e.read("a"); !bytes.Equal(got, model) {
			t.Fatal("what was lost is back, and the content is another one")
		}
	}
}

// powerCutAfterSync is powerCut after all has been said to be durable on this machine.
func (e *env) powerCutAfterSync(r *rand.Rand) {
	e.t.Helper()
	if err := e.v.fsync(ctx, Root); err != nil {
		e.t.Fatal(err)
	}
	e.powerCut(r)
}

// TestOverwriteUnreachable changes a file while the remote is away: nothing is taken for lost, and the commit waits.
func TestOverwriteUnreachable(t *testing.T) {
	e := newImpatientEnv(t)
	data := randomData(1, 1<<20)
	e.write("a", 0, data)
	e.wipe()
	e.chunksOf("a") // its nodes are here, its chunks are not
	e.wire.away.Store(true)
	e.write("a", 5000, []byte("x"))
	if err := e.v.commits.commit(ctx, nil); !errors.Is(err, remote.ErrUnreachable) {
		t.Errorf("commit = %v, want ErrUnreachable", err)
	}
	e.wire.away.Store(false)
	e.v.tryAgain()
	e.sync()
	for _, c := range e.chunksOf("a") {
		if c.skip+c.rest > 0 {
			t.Errorf("a part of a chunk at %d", c.off)
		}
	}
	data[5000] = 'x'
	if got := e.read("a"); !bytes.Equal(got, data) {
		t.Error("other content")
	}
}

// TestOverwriteLostList changes a file whose list of chunks is lost, time and again, and finds all of it when that is back.
func TestOverwriteLostList(t *testing.T) {
	e := newImpatientEnv(t)
	data, other := randomData(1, 3<<20), randomData(2, 100)
	e.write("a", 0, data)
	e.sync()
	e.write("b", 0, other)
	e.wipe()
	m := e.contentOf("a")
	restore := e.lose(m.Ref.Hint.Multichunk)
	change := func(off int) {
		e.write("a", int64(off), other)
		if n := off + len(other); n > len(data) {
			data = append(data, make([]byte, n-len(data))...)
		}
		copy(data[off:], other)
	}
	check := func(off int) {
		t.Helper()
		if got, err := e.part("a", int64(off), int64(len(other))); err != nil || !bytes.Equal(got, other) {
			t.Errorf("read what was written at %d: %v", off, err)
		}
		if _, err := e.part("a", int64(off-1), 1); !store.IsLost(err) {
			t.Errorf("read what is lost before %d: %v", off, err)
		}
	}
	for _, off := range []int{1 << 20, 1<<20 + 5000, 3<<20 - 50, 1} {
		change(off)
		e.sync()
		check(off)
		e.wipe()
		check(off)
	}
	e.truncate("a", 2<<20)
	data = data[:2<<20]
	e.wipe()
	check(1 << 20)
	restore()
	e.wipe()
	if got := e.read("a"); !bytes.Equal(got, data) {
		t.Error("what was lost is back, and the content is another one")
	}
	change(1<<20 + 2000)
	e.wipe()
	if got := e.read("a"); !bytes.Equal(got, data) {
		t.Error("changed when all was back: other content")
	}
}
