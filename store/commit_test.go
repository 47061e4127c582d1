package store

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// A writer publishes the commits of one incarnation in tests.
type writer struct {
	r    *Repository
	g    *Registration
	key  ed25519.PrivateKey
	last *Commit
}

func newWriter(t testing.TB, r *Repository) *writer {
	t.Helper()
	g, key, err := r.Register(t.Context(), NewClientID(), "host")
	if err != nil {
		t.Fatal(err)
	}
	return &writer{r: r, g: g, key: key}
}

// commit publishes the next commit, which has seen others.
func (w *writer) commit(t testing.TB, seen ...Head) Head {
	t.Helper()
	c := w.g.Next(w.last)
	c.Seen = seen
	c.Time = time.Now()
	h, err := w.r.PutCommit(t.Context(), c, w.key)
	if err != nil {
		t.Fatal(err)
	}
	w.last = c
	return h
}

// commits publishes n commits and returns their heads.
func (w *writer) commits(t testing.TB, n int) (heads []Head) {
	t.Helper()
	for range n {
		heads = append(heads, w.commit(t))
	}
	return heads
}

// clone returns a writer that goes on from where w is, as a copy of its cache directory would.
func (w *writer) clone() *writer {
	c := *w
	return &c
}

func randomCommit(rng *rand.Rand, g *Registration, prev *Commit) *Commit {
	c := g.Next(prev)
	id := func() (id ID) { copy(id[:], randomBytes(rng, len(id))); return id }
	root := func() Ref {
		return Ref{ID: id(), Kind: RefNode, Hint: Hint{Multichunk: Name(randomBytes(rng, 16)), Off: rng.Uint32(), Len: rng.Uint32()}}
	}
	for range rng.IntN(5) {
		c.Seen = append(c.Seen, Head{ClientID(randomBytes(rng, 16)), Incarnation(randomBytes(rng, 16)), Seq(rng.Uint64()), CommitHash(id())})
	}
	if rng.IntN(3) > 0 {
		c.Root, c.Snapshots = root(), root()
	}
	copy(c.Volume[:], randomBytes(rng, 16))
	for range rng.IntN(20) {
		m := MultichunkInfo{Name: Name(randomBytes(rng, 16)), Kind: Kind(rng.IntN(2))}
		for range rng.IntN(20) {
			m.Hooks = append(m.Hooks, id())
		}
		c.Multichunks = append(c.Multichunks, m)
	}
	c.Time = time.Unix(0, int64(rng.Uint64()>>1)-1<<61).UTC()
	c.Host, c.Message = string(randomText(rng, rng.IntN(50))), "Grüße\n"
	for range rng.IntN(4) {
		c.Tags = append(c.Tags, string(randomText(rng, rng.IntN(9))))
	}
	c.Stats = CommitStats{rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64()}
	return c
}

func TestCommitRoundTrip(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	rng := newRand(t)
	for range 40 {
		c := randomCommit(rng, w.g, w.last)
		h, err := r.PutCommit(t.Context(), c, w.key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := openOn(t, st).GetCommit(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		if got.Head() != h || !reflect.DeepEqual(got, c) {
			t.Fatalf("read %+v\nwant %+v", got, c)
		}
		w.last = got
	}
	for _, name := range st.InDir(commitsDir) {
		if wire, _ := st.Object(name); seal.PadSize(len(wire)) != len(wire) {
			t.Errorf("%s has %d bytes, which is not one of the padded lengths", name, len(wire))
		}
	}
}

func TestCommitNames(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	w.commits(t, 257)
	names := st.InDir(commitsDir)
	if len(names) != 257 {
		t.Fatalf("%d commits, want 257", len(names))
	}
	for i, name := range names {
		want := fmt.Sprintf("commits/%s/%s/%014x/%016x-", w.g.Client, w.g.Incarnation, (i+1)>>8, i+1)
		if !strings.HasPrefix(name, want) || len(name) != len(want)+32 {
			t.Errorf("commit %d lies under %s", i+1, name)
		}
	}
	if n := len(names[0]); n > 138 {
		t.Errorf("names have %d bytes", n)
	}
}

// TestCommitTwice shows that the same content committed twice is two commits under two names.
func TestCommitTwice(t *testing.T) {
	r, _, _ := initMem(t)
	w := newWriter(t, r)
	a, errA := r.SealCommit(w.g.Next(nil), w.key)
	b, errB := r.SealCommit(w.g.Next(nil), w.key)
	if errA != nil || errB != nil || a.Name == b.Name || a.Head.Hash == b.Head.Hash {
		t.Errorf("%v, %v: %s and %s", errA, errB, a.Name, b.Name)
	}
}

func TestSealCommitErrors(t *testing.T) {
	r, _, _ := initMem(t)
	w := newWriter(t, r)
	_, stranger, _ := ed25519.GenerateKey(nil)
	if _, err := r.SealCommit(w.g.Next(nil), stranger); err == nil {
		t.Error("sealed with the key of another incarnation")
	}
	for name, change := range map[string]func(*Commit){
		"number 0":                  func(c *Commit) { c.Seq = 0 },
		"first with predecessor":    func(c *Commit) { c.Prev[0] = 1 },
		"second without":            func(c *Commit) { c.Seq = 2 },
		"skip link to itself":       func(c *Commit) { c.Seq, c.Prev[0], c.Skip = 2, 1, []SkipLink{{2, CommitHash{}}} },
		"skip link to number 0":     func(c *Commit) { c.Seq, c.Prev[0], c.Skip = 5, 1, []SkipLink{{0, CommitHash{}}} },
		"skip links in wrong order": func(c *Commit) { c.Seq, c.Prev[0], c.Skip = 9, 1, []SkipLink{{4, CommitHash{}}, {6, CommitHash{}}} },
	} {
		c := w.g.Next(nil)
		change(c)
		if _, err := r.SealCommit(c, w.key); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
	long := w.g.Next(nil)
	long.Message, long.Host, long.Tags = strings.Repeat("é", 5000), "bad \xff", []string{strings.Repeat("x", 5000)}
	h, err := r.PutCommit(t.Context(), long, w.key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.GetCommit(t.Context(), h)
	if err != nil || len(got.Message) != 4096 || got.Host != "bad \uFFFD" || len(got.Tags[0]) != 4096 {
		t.Errorf("long texts: %v", err)
	}
}

// TestPutCommitVerifies loses and damages the put.
func TestPutCommitVerifies(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	w := newWriter(t, r)
	s, err := r.SealCommit(w.g.Next(nil), w.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []remotetest.Kind{remotetest.LostPut, remotetest.ErrBefore, remotetest.HalfPut, remotetest.Refused} {
		f.Inject(kind, "put", "", 1)
		if err := r.PutSealed(t.Context(), s); err == nil {
			t.Errorf("%s: no error", kind)
		}
	}
	f.Inject(remotetest.ErrAfter, "put", "", 1)
	if err := r.PutSealed(t.Context(), s); err != nil {
		t.Errorf("put that worked and gave an error: %v", err)
	}
	if err := r.PutSealed(t.Context(), s); err != nil {
		t.Errorf("put again: %v", err)
	}
	if f.Total() != 5 {
		t.Errorf("%d faults, want 5", f.Total())
	}
}

// TestCommitDamage flips bits of a commit and cuts it.
func TestCommitDamage(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	h := w.commit(t)
	name := r.commitName(h)
	wire, _ := st.Object(name)
	check := func(what string, bad []byte) {
		t.Helper()
		_, err := r.openCommit(name, bad)
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v, want ErrCorrupt", what, err)
		}
	}
	step := 7
	if long {
		step = 1
	}
	for i := 0; i < len(wire)*8; i += step {
		bad := bytes.Clone(wire)
		bad[i/8] ^= 1 << (i % 8)
		check(fmt.Sprintf("bit %d", i), bad)
	}
	for n := 0; n < len(wire); n += step {
		check(fmt.Sprintf("cut at %d", n), wire[:n])
	}
	check("longer", append(bytes.Clone(wire), 0))
	st.Damage(name, func(b []byte) []byte { b[1000] ^= 1; return b })
	var about *ObjectError
	if _, err := r.GetCommit(t.Context(), h); !errors.As(err, &about) || about.Object != name || !errors.Is(err, ErrCorrupt) {
		t.Errorf("GetCommit = %v, want an error about %s", err, name)
	}
	if _, err := r.GetCommit(t.Context(), Head{h.Client, h.Incarnation, 1, CommitHash{1}}); !errors.Is(err, remote.ErrNotExist) {
		t.Errorf("GetCommit of nothing = %v", err)
	}
}

// TestCommitSwapped puts commits in each other's place, into another repository, and forges them with the keys of the
// repository.
func TestCommitSwapped(t *testing.T) {
	r, st, _ := initMem(t)
	other, _, _ := initMem(t)
	w, v := newWriter(t, r), newWriter(t, r)
	a, b, c := w.commit(t), w.commit(t), v.commit(t)
	for _, from := range []Head{b, c} {
		wire, _ := st.Object(r.commitName(from))
		if _, err := r.openCommit(r.commitName(a), wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v in the place of %v: %v", from, a, err)
		}
		if _, err := other.openCommit(r.commitName(from), wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("in another repository: %v", err)
		}
		if _, err := r.openRegistration(r.commitName(from), wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("as a registration: %v", err)
		}
	}
	// The client v signs a commit that says it is the next one of w.
	forged := w.g.Next(w.last)
	forged.public = w.g.PublicKey
	body := appendCommit(nil, forged, [16]byte{})
	forged.hash = r.hashCommit(body)
	name := r.commitName(forged.Head())
	for what, signature := range map[string][]byte{
		"another client":     ed25519.Sign(v.key, r.commitMessage(forged.hash, name)),
		"another name":       ed25519.Sign(w.key, r.commitMessage(forged.hash, name+"0")),
		"another hash":       ed25519.Sign(w.key, r.commitMessage(CommitHash{}, name)),
		"another repository": ed25519.Sign(w.key, other.commitMessage(forged.hash, name)),
	} {
		wire, err := r.keys.SealPadded(seal.KindCommit, name, append(bytes.Clone(signature), body...), seal.Features{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.openCommit(name, wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("signature for %s: %v, want ErrCorrupt", what, err)
		}
	}
	// The client itself puts its commit under a name that does not follow from the hash, so that others could not
	// fetch it.
	elsewhere := r.commitName(Head{w.g.Client, w.g.Incarnation, forged.Seq, CommitHash{1}})
	signature := ed25519.Sign(w.key, r.commitMessage(forged.hash, elsewhere))
	wire, err := r.keys.SealPadded(seal.KindCommit, elsewhere, append(signature, body...), seal.Features{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.openCommit(elsewhere, wire); !errors.Is(err, ErrCorrupt) {
		t.Errorf("under a name of its own choice: %v, want ErrCorrupt", err)
	}
}

// TestCommitNewer reads commits of later programs.
func TestCommitNewer(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	c := w.g.Next(nil)
	c.Features = seal.Features{Ignore: 1, ReadOnly: 2}
	h, err := r.PutCommit(t.Context(), c, w.key)
	if err != nil {
		t.Fatal(err)
	}
	reader := openOn(t, st)
	if _, err := reader.GetCommit(t.Context(), h); err != nil {
		t.Errorf("read-only feature: %v", err)
	}
	if err := reader.ReadOnly(); !errors.Is(err, ErrReadOnly) {
		t.Errorf("ReadOnly = %v, want ErrReadOnly", err)
	}
	if _, err := reader.PutCommit(t.Context(), w.g.Next(nil), w.key); !errors.Is(err, ErrReadOnly) {
		t.Errorf("PutCommit = %v, want ErrReadOnly", err)
	}
	w.last = c
	next := w.g.Next(c)
	next.Features = seal.Features{Refuse: 1}
	if h, err = r.PutCommit(t.Context(), next, w.key); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.GetCommit(t.Context(), h); !errors.Is(err, ErrFormat) {
		t.Errorf("feature to refuse: %v, want ErrFormat", err)
	}
}

// TestSkipLinks follows the links of 3,000 commits to every tenth older one.
func TestSkipLinks(t *testing.T) {
	r, _, _ := initMem(t)
	w := newWriter(t, r)
	const n = 3000
	chain := make([]*Commit, n+1)
	for i := 1; i <= n; i++ {
		c := w.g.Next(chain[i-1])
		c.hash = CommitHash{byte(i), byte(i >> 8), 1}
		chain[i] = c
		if i > 1 {
			checkLinks(t, c)
		}
	}
	for target := 1; target < n; target += 10 {
		hops, c := 0, chain[n]
		for c.Seq > Seq(target) {
			next := Seq(0)
			for _, l := range c.links() {
				if l.Seq >= Seq(target) {
					next = l.Seq
				}
			}
			c, hops = chain[next], hops+1
		}
		if limit := 2 * bits.Len(n); hops > limit {
			t.Errorf("from %d to %d in %d hops, want at most %d", n, target, hops, limit)
		}
	}
}

// checkLinks compares with the definition.
func checkLinks(t *testing.T, c *Commit) {
	t.Helper()
	var want []Seq
	for s := c.Seq - 1; s > 0; s-- {
		for k := Seq(1); k <= s; k *= 2 {
			if s%k == 0 && s+2*k >= c.Seq {
				want = append(want, s)
				break
			}
		}
	}
	var got []Seq
	for _, l := range c.links() {
		got = append(got, l.Seq)
		if l.Hash != (CommitHash{byte(l.Seq), byte(l.Seq >> 8), 1}) {
			t.Errorf("commit %d links to %d with the hash of another", c.Seq, l.Seq)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("commit %d links to %d, want %d", c.Seq, got, want)
	}
}

func TestMaximalHeads(t *testing.T) {
	r, _, _ := initMem(t)
	a, b, c := newWriter(t, r), newWriter(t, r), newWriter(t, r)
	a1 := a.commit(t)
	b1 := b.commit(t, a1)
	a2 := a.commit(t)
	c1 := c.commit(t, a2, b1)
	b2 := b.commit(t, a1)
	for _, test := range []struct{ heads, want []Head }{
		{[]Head{a1}, []Head{a1}},
		{[]Head{a1, b1}, []Head{b1}},
		{[]Head{a2, b1}, []Head{a2, b1}},
		{[]Head{a2, b1, c1}, []Head{c1}},
		{[]Head{a2, b2, c1}, []Head{b2, c1}},
		{nil, nil},
	} {
		got, err := r.MaximalHeads(t.Context(), test.heads)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("MaximalHeads(%v) = %v, %v, want %v", test.heads, got, err, test.want)
		}
	}
}

func FuzzCommit(f *testing.F) {
	public, _, _ := ed25519.GenerateKey(nil)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		c := randomCommit(rng, &Registration{}, nil)
		c.public = public
		f.Add(appendCommit(nil, c, [16]byte{1}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := allocated()
		c, err := parseCommit(b)
		if got := allocated() - before; got > uint64(40*len(b))+1<<20 {
			t.Errorf("%d bytes made it allocate %d", len(b), got)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		again, err := parseCommit(appendCommit(nil, c, [16]byte{1}))
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Errorf("round trip gives %+v, %v\nwant %+v", again, err, c)
		}
	})
}

func FuzzConfig(f *testing.F) {
	cfg := Config{}.withDefaults()
	f.Add(appendConfig(nil, &cfg))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseConfig(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		if got := appendConfig(nil, &c); !bytes.HasPrefix(b, got) {
			t.Errorf("%x is read as %+v, which is %x", b, c, got)
		}
	})
}

func FuzzOpenState(f *testing.F) {
	r, _, _ := initMem(f)
	f.Add(r.ExportState())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseObjects(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		o.parseSlots()
	})
}
