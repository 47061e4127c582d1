package remotetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
)

// A Kind is a way in which a storage misbehaves.
type Kind string

// What can go wrong. The operations it can befall are in brackets.
const (
	ErrBefore   Kind = "error before the effect"     // [all]
	ErrAfter    Kind = "error after the effect"      // [put, delete]
	Unreachable Kind = "unreachable"                 // [all]
	Refused     Kind = "access refused"              // [all]
	NoSpace     Kind = "no space"                    // [put]
	NotFound    Kind = "not found, though it is"     // [get]
	Hang        Kind = "hang until ctx ends"         // [all]
	HalfPut     Kind = "half written, then an error" // [put]
	LostPut     Kind = "acknowledged and lost"       // [put]
	ShortBody   Kind = "short body without an error" // [get]
	CorruptBody Kind = "one bit of the body flipped" // [get]
	WrongRange  Kind = "bytes from another place"    // [get]
	StaleList   Kind = "listing without latest puts" // [list]
	DoubledList Kind = "listing with doubles"        // [list]
	BrokenList  Kind = "listing fails half-way"      // [list]
)

var befalls = map[string][]Kind{ // in a fixed order, so that a seed replays
	"put":    {ErrBefore, ErrAfter, Unreachable, Refused, NoSpace, Hang, HalfPut, LostPut},
	"get":    {ErrBefore, Unreachable, Refused, NotFound, Hang, ShortBody, CorruptBody, WrongRange},
	"list":   {ErrBefore, Unreachable, Refused, Hang, StaleList, DoubledList, BrokenList},
	"delete": {ErrBefore, ErrAfter, Unreachable, Refused, Hang},
}

// ErrInjected is in every error that a Fault makes up.
var ErrInjected = errors.New("injected fault")

// staleBy is the number of puts that a stale listing is behind.
const staleBy = 4

// FaultOptions of NewFault. Nil is no faults, no latency.
type FaultOptions struct {
	Seed      uint64           // of the faults by Rates
	Rates     map[Kind]float64 // probability of each kind, per call that it can befall
	Latency   time.Duration    // of each call
	Bandwidth int64            // bytes per second of each put and get, 0 is no bound

	// Sleep spends Latency and Bandwidth; the default does so in real time.
	Sleep func(ctx context.Context, d time.Duration) error
}

// A Fault is a Storage that misbehaves: at random by rates, by script, or as a
// hook says. What it does not befall it passes on.
type Fault struct {
	s remote.Storage
	o FaultOptions

	mu     sync.Mutex // guards all below
	rand   *rand.Rand
	rates  map[Kind]float64
	script []line
	hook   func(op, name string) error
	calls  map[string]int
	hits   map[Kind]int
	lost   []string
	recent []string // names put last, at most staleBy
}

type line struct {
	kind     Kind
	op, name string
	times    int // < 0: for ever
}

var (
	_ remote.Storage = (*Fault)(nil)
	_ remote.Syncer  = (*Fault)(nil)
)

// NewFault wraps s.
func NewFault(s remote.Storage, o *FaultOptions) *Fault {
	f := &Fault{s: s, calls: make(map[string]int), hits: make(map[Kind]int)}
	if o != nil {
		f.o = *o
	}
	if f.o.Sleep == nil {
		f.o.Sleep = sleep
	}
	f.rates = f.o.Rates
	f.rand = rand.New(rand.NewPCG(f.o.Seed, 0))
	return f
}

// Inject makes kind befall the next times calls of op ("put", "get", "list",
// "delete") on name ("" is any), or all from now on if times < 0. What was
// injected first is used up first.
func (f *Fault) Inject(kind Kind, op, name string, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = append(f.script, line{kind, op, name, times})
}

// Heal ends all faults: rates, script and hook.
func (f *Fault) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rates, f.script, f.hook = nil, nil, nil
}

// SetRates replaces the rates.
func (f *Fault) SetRates(rates map[Kind]float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rates = maps.Clone(rates)
}

// SetHook makes hook be called at the beginning of each call. What error it
// returns, the call returns without effect.
func (f *Fault) SetHook(hook func(op, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// Hits returns how many faults of each kind have been injected.
func (f *Fault) Hits() map[Kind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.hits)
}

// Total returns how many faults have been injected.
func (f *Fault) Total() int {
	total := 0
	for _, n := range f.Hits() {
		total += n
	}
	return total
}

// Calls returns the number of calls of op so far.
func (f *Fault) Calls(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Lost returns the names of the puts that were acknowledged and lost.
func (f *Fault) Lost() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.lost...)
}

// Put implements remote.Storage.
func (f *Fault) Put(ctx context.Context, name string, data []byte) error {
	kind, err := f.begin(ctx, "put", name)
	if err != nil {
		return err
	}
	switch kind {
	case LostPut:
		f.lose(name)
		return nil
	case HalfPut:
		_ = f.s.Put(ctx, name, data[:len(data)/2])
		return injected("put", name)
	}
	if err := f.spend(ctx, len(data)); err != nil {
		return err
	}
	if err := f.s.Put(ctx, name, data); err != nil {
		return err
	}
	f.remember(name)
	if kind == ErrAfter {
		return injected("put", name)
	}
	return nil
}

// Get implements remote.Storage.
func (f *Fault) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	kind, err := f.begin(ctx, "get", name)
	if err != nil {
		return nil, err
	}
	data, err := f.s.Get(ctx, name, off, n)
	if err != nil {
		return nil, err
	}
	if err := f.spend(ctx, len(data)); err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return data, nil
	}
	switch kind {
	case ShortBody:
		data = data[:f.intn(len(data))]
	case CorruptBody:
		data[f.intn(len(data))] ^= 1 << f.intn(8)
	case WrongRange:
		data = append(bytes.Clone(data[1:]), data[0]+1)
	}
	return data, nil
}

// List implements remote.Storage.
func (f *Fault) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	kind, err := f.begin(ctx, "list", dir)
	if err != nil {
		return err
	}
	var entries []remote.Entry
	if err := f.s.List(ctx, dir, func(e remote.Entry) error {
		if kind != StaleList || !f.isRecent(path.Join(dir, e.Name)) {
			entries = append(entries, e)
		}
		return nil
	}); err != nil {
		return err
	}
	switch kind {
	case DoubledList:
		entries = append(entries, entries...)
	case BrokenList:
		entries = entries[:len(entries)/2]
	}
	for _, e := range entries {
		if err := fn(e); err != nil {
			return err
		}
	}
	if kind == BrokenList {
		return injected("list", dir)
	}
	return nil
}

// Delete implements remote.Storage.
func (f *Fault) Delete(ctx context.Context, name string) error {
	kind, err := f.begin(ctx, "delete", name)
	if err != nil {
		return err
	}
	if err := f.s.Delete(ctx, name); err != nil {
		return err
	}
	if kind == ErrAfter {
		return injected("delete", name)
	}
	return nil
}

// RemoveDir implements remote.DirRemover, if the storage below does. Only the
// hook sees it.
func (f *Fault) RemoveDir(ctx context.Context, name string) error {
	if err := f.enter("remove directory", name); err != nil {
		return err
	}
	if d, ok := f.s.(remote.DirRemover); ok {
		return d.RemoveDir(ctx, name)
	}
	return nil
}

// Sync implements remote.Syncer, if the storage below does. Only the hook sees
// it.
func (f *Fault) Sync(ctx context.Context) error {
	if err := f.enter("sync", ""); err != nil {
		return err
	}
	if s, ok := f.s.(remote.Syncer); ok {
		return s.Sync(ctx)
	}
	return nil
}

// begin counts a call and chooses what befalls it. If that is an error before
// any effect, it returns it.
func (f *Fault) begin(ctx context.Context, op, name string) (Kind, error) {
	if err := f.enter(op, name); err != nil {
		return "", err
	}
	if err := f.o.Sleep(ctx, f.o.Latency); err != nil {
		return "", err
	}
	switch kind := f.choose(op, name); kind {
	case ErrBefore:
		return kind, injected(op, name)
	case Unreachable:
		return kind, injected(op, name, remote.ErrUnreachable)
	case Refused:
		return kind, injected(op, name, remote.ErrAuth)
	case NoSpace:
		return kind, injected(op, name, remote.ErrNoSpace)
	case NotFound:
		return kind, injected(op, name, remote.ErrNotExist)
	case Hang:
		<-ctx.Done()
		return kind, injected(op, name, ctx.Err())
	default:
		return kind, nil
	}
}

// enter counts a call and asks the hook, which may itself call the Fault.
func (f *Fault) enter(op, name string) error {
	f.mu.Lock()
	f.calls[op]++
	hook := f.hook
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op, name)
}

func (f *Fault) choose(op, name string) Kind {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind := f.fromScript(op, name)
	if kind == "" {
		kind = f.fromRates(op)
	}
	if kind != "" {
		f.hits[kind]++
	}
	return kind
}

func (f *Fault) fromScript(op, name string) Kind {
	for i := range f.script {
		l := &f.script[i]
		if l.times == 0 || l.op != op || l.name != "" && l.name != name {
			continue
		}
		if l.times > 0 {
			l.times--
		}
		return l.kind
	}
	return ""
}

func (f *Fault) fromRates(op string) Kind {
	p := f.rand.Float64()
	for _, kind := range befalls[op] {
		if p -= f.rates[kind]; p < 0 {
			return kind
		}
	}
	return ""
}

// spend takes the time that n bytes need.
func (f *Fault) spend(ctx context.Context, n int) error {
	if f.o.Bandwidth <= 0 {
		return nil
	}
	return f.o.Sleep(ctx, time.Duration(float64(n)/float64(f.o.Bandwidth)*float64(time.Second)))
}

func (f *Fault) intn(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rand.IntN(n)
}

func (f *Fault) lose(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, name)
}

func (f *Fault) remember(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recent = append(f.recent, name)
	f.recent = f.recent[max(0, len(f.recent)-staleBy):]
}

func (f *Fault) isRecent(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.recent {
		if r == name {
			return true
		}
	}
	return false
}

// injected returns the error of a fault, with the given causes.
func injected(op, name string, causes ...error) error {
	return fmt.Errorf("%s %s: %w", op, name, errors.Join(append(causes, ErrInjected)...))
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
