package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// cheapKDF is as cheap as is allowed.
var cheapKDF = KDF{Memory: 8, Passes: 1, Threads: 1}

var password = []byte("correct horse battery staple")

func initOn(t testing.TB, st remote.Storage) (*Repository, string) {
	t.Helper()
	r, recovery, err := Init(t.Context(), st, password, &InitOptions{KDF: cheapKDF})
	if err != nil {
		t.Fatal(err)
	}
	r.askAgain = 0
	return r, recovery
}

func initMem(t testing.TB) (*Repository, *remotetest.Mem, string) {
	t.Helper()
	st := remotetest.NewMem()
	r, recovery := initOn(t, st)
	return r, st, recovery
}

func openOn(t testing.TB, st remote.Storage) *Repository {
	t.Helper()
	r, err := Open(t.Context(), st, password, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.askAgain = 0
	return r
}

// failAt makes kind befall call number i of op, counted from 0.
func failAt(f *remotetest.Fault, kind remotetest.Kind, op string, i int) {
	var calls atomic.Int64
	f.SetHook(func(called, name string) error {
		if called == op && calls.Add(1) == int64(i)+1 {
			f.Inject(kind, op, name, 1)
		}
		return nil
	})
}

func TestInitOpen(t *testing.T) {
	r, st, recovery := initMem(t)
	for _, secret := range [][]byte{password, []byte(recovery), []byte(strings.ToLower(recovery))} {
		got, err := Open(t.Context(), st, secret, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Config() != r.Config() {
			t.Errorf("opened %+v, want %+v", got.Config(), r.Config())
		}
		if id := got.ChunkID([]byte("x")); id != r.ChunkID([]byte("x")) || id == got.NodeID([]byte("x")) {
			t.Errorf("chunk id %s", id)
		}
	}
}

func TestInitDefaults(t *testing.T) {
	r, _, _ := initMem(t)
	cfg := r.Config()
	if cfg.Repository == (RepositoryID{}) || cfg.Volume == [16]byte{} || cfg.MultichunkSize != 8<<20 || cfg.SettleTime != DefaultSettleTime {
		t.Errorf("configuration %+v", cfg)
	}
	for _, bad := range []Config{
		{MultichunkSize: 1 << 10},
		{MultichunkSize: 128 << 20},
		{GroupSize: 1},
		{Compression: "rar"},
		{SettleTime: 1 << 62},
	} {
		st := remotetest.NewMem()
		if _, _, err := Init(t.Context(), st, password, &InitOptions{Config: bad, KDF: cheapKDF}); err == nil {
			t.Errorf("Init with %+v: no error", bad)
		}
		if names := st.Names(); len(names) > 0 {
			t.Errorf("Init with %+v left %q", bad, names)
		}
	}
	if _, _, err := Init(t.Context(), remotetest.NewMem(), nil, &InitOptions{KDF: cheapKDF}); err == nil {
		t.Error("Init with an empty password: no error")
	}
}

func TestInitExists(t *testing.T) {
	_, st, _ := initMem(t)
	stranger := remotetest.NewMem()
	stranger.SetObject("holiday.jpg", []byte("x"))
	inOurs := remotetest.NewMem()
	inOurs.SetObject("keys/id_rsa", []byte("x"))
	data := remotetest.NewMem()
	data.SetObject("data/00/00", []byte("x"))
	for name, st := range map[string]*remotetest.Mem{"repository": st, "foreign file": stranger, "foreign file in ours": inOurs, "data": data} {
		before := st.Names()
		if _, _, err := Init(t.Context(), st, password, &InitOptions{KDF: cheapKDF}); !errors.Is(err, ErrExists) {
			t.Errorf("%s: %v, want ErrExists", name, err)
		}
		if after := st.Names(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: Init changed %q to %q", name, before, after)
		}
	}
}

// TestInitFaults stops Init at every put in every way, and then runs it again as a person would.
func TestInitFaults(t *testing.T) {
	hits := 0
	for _, kind := range []remotetest.Kind{remotetest.ErrBefore, remotetest.ErrAfter, remotetest.HalfPut, remotetest.LostPut, remotetest.Unreachable} {
		for i := 0; ; i++ {
			mem := remotetest.NewMem()
			f := remotetest.NewFault(mem, nil)
			failAt(f, kind, "put", i)
			_, _, err := Init(t.Context(), f, password, &InitOptions{KDF: cheapKDF})
			if f.Total() == 0 {
				if err != nil {
					t.Errorf("%s at put %d was not hit: %v", kind, i, err)
				}
				break
			}
			hits++
			if err == nil {
				openOn(t, mem) // the put had worked
				continue
			}
			f.Heal()
			checkRepeatedInit(t, fmt.Sprintf("%s at put %d", kind, i), mem)
		}
	}
	if hits < 4*4 {
		t.Errorf("only %d faults were hit", hits)
	}
}

func checkRepeatedInit(t *testing.T, what string, mem *remotetest.Mem) {
	t.Helper()
	if _, err := Open(t.Context(), mem, password, nil); err == nil {
		t.Errorf("%s: Init failed, and yet the repository opens", what)
	} else if !errors.Is(err, ErrNoRepository) && !errors.Is(err, ErrCorrupt) {
		t.Errorf("%s: Open says %v", what, err)
	}
	if _, _, err := Init(t.Context(), mem, password, &InitOptions{KDF: cheapKDF}); err != nil {
		t.Errorf("%s: Init again: %v", what, err)
		return
	}
	openOn(t, mem)
}

func TestInitListingFails(t *testing.T) {
	for i := range 2 {
		mem := remotetest.NewMem()
		f := remotetest.NewFault(mem, nil)
		failAt(f, remotetest.BrokenList, "list", i)
		if _, _, err := Init(t.Context(), f, password, &InitOptions{KDF: cheapKDF}); !errors.Is(err, remotetest.ErrInjected) {
			t.Errorf("listing %d fails: %v, want the fault", i, err)
		}
	}
}

// TestTwoRepositories lets two machines make a repository at the same time.
func TestTwoRepositories(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	var other *Repository
	f.SetHook(func(op, name string) error {
		if op == "put" && strings.HasPrefix(name, repositoryDir+"/") && other == nil {
			other, _ = initOn(t, mem)
		}
		return nil
	})
	_, _, err := Init(t.Context(), f, password, &InitOptions{KDF: cheapKDF})
	if !errors.Is(err, ErrTwoRepositories) {
		t.Fatalf("Init = %v, want ErrTwoRepositories", err)
	}
	if got := openOn(t, mem); got.Config() != other.Config() {
		t.Error("the repository of the machine that was first is not what is left")
	}
	// A storage that refuses to delete leaves both.
	second := remotetest.NewMem()
	initOn(t, second)
	for _, name := range second.Names() {
		data, _ := second.Object(name)
		mem.SetObject(name, data)
	}
	if _, err := Open(t.Context(), mem, password, nil); !errors.Is(err, ErrTwoRepositories) {
		t.Errorf("Open = %v, want ErrTwoRepositories", err)
	}
}

func TestOpenErrors(t *testing.T) {
	_, st, recovery := initMem(t)
	gone := remotetest.NewMem()
	gone.SetGone(true)
	foreign := remotetest.NewMem()
	foreign.SetObject("repository/README", []byte("x"))
	foreign.SetObject("keys/ABCDEF", []byte("x"))
	typo := "2" + recovery[1:]
	if typo == recovery {
		typo = "3" + recovery[1:]
	}
	for _, c := range []struct {
		name     string
		st       remote.Storage
		password string
		want     error
		text     string
	}{
		{"empty", remotetest.NewMem(), string(password), ErrNoRepository, ""},
		{"root gone", gone, string(password), ErrNoRepository, ""},
		{"foreign", foreign, string(password), ErrNoRepository, ""},
		{"wrong password", st, "hunter2 is not it", ErrPassword, ""},
		{"empty password", st, "", ErrPassword, ""},
		{"recovery key mistyped", st, typo, ErrPassword, "typing mistake"},
	} {
		_, err := Open(t.Context(), c.st, []byte(c.password), nil)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v, want %v %s", c.name, err, c.want, c.text)
		}
		if c.password != "" && strings.Contains(fmt.Sprint(err), c.password) {
			t.Errorf("%s: the error shows the secret: %v", c.name, err)
		}
	}
	f := remotetest.NewFault(st, nil)
	for _, op := range []string{"list", "get"} {
		for i := range 3 {
			failAt(f, remotetest.Unreachable, op, i)
			if _, err := Open(t.Context(), f, password, nil); !errors.Is(err, remote.ErrUnreachable) {
				t.Errorf("%s %d unreachable: %v", op, i, err)
			}
		}
	}
}

// TestOpenDamage damages each of the objects that a repository is opened from: every bit of the small ones, a sample
// of the others.
func TestOpenDamage(t *testing.T) {
	_, st, _ := initMem(t)
	rng := newRand(t)
	objects, err := fetchObjects(t.Context(), st, nil)
	if err != nil {
		t.Fatal(err)
	}
	flips := 0
	try := func(what string, wire []byte, replace func([]byte)) {
		t.Helper()
		replace(wire)
		_, err := objects.open(st, password)
		if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrPassword) {
			t.Fatalf("%s: %v, want ErrCorrupt", what, err)
		}
	}
	damage := func(what string, wire []byte, replace func([]byte)) {
		step := 1
		if !long {
			step = 1 + len(wire)*8/1500
		}
		for i := rng.IntN(step); i < len(wire)*8; i += step {
			bad := bytes.Clone(wire)
			bad[i/8] ^= 1 << (i % 8)
			try(fmt.Sprintf("%s, bit %d", what, i), bad, replace)
			flips++
		}
		for n := 0; n < len(wire); n += 1 + len(wire)/100 {
			try(fmt.Sprintf("%s, cut at %d", what, n), wire[:n], replace)
		}
		try(what+", longer", append(bytes.Clone(wire), 0), replace)
		replace(wire)
	}
	damage("repository", objects.repository, func(b []byte) { objects.repository = b })
	for id, wire := range objects.keyrings {
		damage("keyring", wire, func(b []byte) { objects.keyrings[id] = b })
	}
	for _, s := range onlySlots(objects, seal.MethodPassword) {
		damage("slot", objects.slots[s], func(b []byte) { objects.slots[s] = b })
	}
	if flips < 3000 {
		t.Errorf("only %d bits flipped", flips)
	}
}

func onlySlots(o *openObjects, m seal.Method) (ids []seal.ID) {
	slots, _ := o.parseSlots()
	for _, s := range slots {
		if s.Method == m {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// TestOpenBesideDamage shows that damage to one slot or keyring does not lock out who does not need it.
func TestOpenBesideDamage(t *testing.T) {
	r, st, recovery := initMem(t)
	objects, err := fetchObjects(t.Context(), st, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range onlySlots(objects, seal.MethodPassword) {
		st.Damage(objectName(keysDir, id), func(b []byte) []byte { b[99] ^= 1; return b })
	}
	st.SetObject("keyring/"+strings.Repeat("a", 32), []byte("half-writ"))
	got, err := Open(t.Context(), st, []byte(recovery), nil)
	if err != nil || got.Config() != r.Config() {
		t.Errorf("with the recovery key: %v", err)
	}
	if _, err := Open(t.Context(), st, password, nil); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrPassword) {
		t.Errorf("with the password of the damaged slot: %v, want ErrCorrupt", err)
	}
}

// TestOpenNewer opens repositories of later programs.
func TestOpenNewer(t *testing.T) {
	r, st, _ := initMem(t)
	name := objectName(repositoryDir, seal.ID(r.cfg.Repository))
	reseal := func(cfg Config, more []byte, f seal.Features) {
		t.Helper()
		wire, err := r.keys.SealPadded(seal.KindRepository, name, append(appendConfig(nil, &cfg), more...), f)
		if err != nil {
			t.Fatal(err)
		}
		st.SetObject(name, wire)
	}
	reseal(r.cfg, nil, seal.Features{Refuse: 1})
	if _, err := Open(t.Context(), st, password, nil); !errors.Is(err, ErrFormat) {
		t.Errorf("feature to refuse: %v, want ErrFormat", err)
	}
	unknown := r.cfg
	unknown.Chunkers.Media = "Quantum-7"
	reseal(unknown, nil, seal.Features{})
	if _, err := Open(t.Context(), st, password, nil); !errors.Is(err, ErrFormat) {
		t.Errorf("unknown chunker: %v, want ErrFormat", err)
	}
	reseal(r.cfg, []byte("\x00\x00a field of later"), seal.Features{Ignore: 1}) // behind the parity, which may be missing only at the end
	if got := openOn(t, st); got.ReadOnly() != nil || got.cfg != r.cfg {
		t.Errorf("feature to ignore: read only: %v", got.ReadOnly())
	}
	reseal(r.cfg, nil, seal.Features{ReadOnly: 4})
	got := openOn(t, st)
	if err := got.ReadOnly(); !errors.Is(err, ErrReadOnly) {
		t.Errorf("read-only feature: %v, want ErrReadOnly", err)
	}
	if _, _, err := got.Register(t.Context(), NewClientID(), "host"); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Register: %v, want ErrReadOnly", err)
	}
	if _, err := got.AddSlot(t.Context(), "x", password, cheapKDF); !errors.Is(err, ErrReadOnly) {
		t.Errorf("AddSlot: %v, want ErrReadOnly", err)
	}
}

// TestOpenSwapped opens a repository with objects of another one, and with its own under other names.
func TestOpenSwapped(t *testing.T) {
	a, stA, _ := initMem(t)
	b, stB, _ := initMem(t)
	mine, theirs := objectName(repositoryDir, seal.ID(a.cfg.Repository)), objectName(repositoryDir, seal.ID(b.cfg.Repository))
	wire, _ := stB.Object(theirs)
	stA.SetObject(mine, wire)
	if _, err := Open(t.Context(), stA, password, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("configuration of another repository: %v, want ErrCorrupt", err)
	}
	stA = remotetest.NewMem()
	for _, name := range stB.Names() {
		data, _ := stB.Object(name)
		stA.SetObject(strings.Replace(name, theirs, mine, 1), data)
	}
	if _, err := Open(t.Context(), stA, password, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another repository under this one's id: %v, want ErrCorrupt", err)
	}
}

func TestOpenFromState(t *testing.T) {
	r, st, recovery := initMem(t)
	state := r.ExportState()
	st.SetGone(true)
	for _, secret := range []string{string(password), recovery} {
		got, err := Open(t.Context(), st, []byte(secret), &OpenOptions{State: state})
		if err != nil || got.Config() != r.Config() || got.ChunkID(nil) != r.ChunkID(nil) {
			t.Fatalf("Open = %v", err)
		}
		if !bytes.Equal(got.ExportState(), state) {
			t.Error("the state changes by being used")
		}
	}
	if _, err := Open(t.Context(), st, []byte("wrong"), &OpenOptions{State: state}); !errors.Is(err, ErrPassword) {
		t.Errorf("wrong password: %v", err)
	}
	for n := range len(state) {
		if _, err := Open(t.Context(), st, password, &OpenOptions{State: state[:n]}); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v, want ErrCorrupt", n, err)
		}
	}
	if bytes.Contains(state, password) {
		t.Error("the state shows the password")
	}
}

func TestNameHash(t *testing.T) {
	r, _, _ := initMem(t)
	h := r.NameHash(1, []byte("name"))
	if h>>56 != 0 || h == 0 || h != r.NameHash(1, []byte("name")) || h == r.NameHash(2, []byte("name")) || h == r.NameHash(1, []byte("nama")) {
		t.Errorf("name hash %#x", h)
	}
	if n := testing.AllocsPerRun(100, func() { r.NameHash(1, []byte("name")); r.ChunkID([]byte("name")); r.NodeID(password) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// cancelled is a context that has ended.
func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestOpenCancelled(t *testing.T) {
	_, st, _ := initMem(t)
	if _, err := Open(cancelled(t), st, password, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v, want context.Canceled", err)
	}
	if _, _, err := Init(cancelled(t), remotetest.NewMem(), password, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Init = %v, want context.Canceled", err)
	}
}
