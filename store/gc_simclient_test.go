package store

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dedupfs/dedupfs/remote"
)

// simClient is a model of a mounted client. Its steps are as small as those between which a real one may be stopped.
type simClient struct {
	w      *simWorld
	slot   *simSlot
	number int

	// What is on its disk.
	id         ClientID
	reg        *Registration
	key        ed25519.PrivateKey
	registered bool
	trust      Trust
	head       *Commit           // the newest that it has published
	intent     *simIntent        // one that is sealed, and may have been put
	files      map[string][]Ref  // the volume, as it is now; hints are zero for what is not uploaded
	snaps      map[string]Ref    // its snapshots
	vv         map[chain]Head    // what the volume contains of every chain
	all        map[chain]Head    // the same, and nothing was ever left out, for the oracle
	known      map[ID]Ref        // nodes of the trees that the volume comes from
	staged     map[ID][]byte     // chunks to upload
	index      map[ID]Hint       // of chunks
	tables     map[Name][]ID     // that stand in index
	added      []Name            // multichunks of chunks that no commit announces yet
	nodeIndex  map[ID]Ref        // what only a broken client has: any node that it has ever seen
	stateRoots [2]Ref            // of the newest tree and snapshots that it has published or adopted
	stateFiles map[string]string // what these were made of, to see whether anything has changed

	// What is in memory.
	ready   bool // notices have been read since the start
	cond    *Condemned
	notices []NoticeID // that are there, as last read
	past    *past
	polled  []Head
	learned map[Name][]TableEntry // read, and not in the index yet
	held    []Ref                 // of open files

	asleep  time.Duration // until then it does nothing
	retired bool
	lives   uint64
}

// simIntent is a commit that is sealed.
type simIntent struct {
	sealed *SealedCommit
	commit *Commit
	oracle *simCommit

	known map[ID]Ref // nodes of its trees
	files map[string]string
	needs map[simNeed]bool
}

func newSimClient(w *simWorld, slot *simSlot, number int) *simClient {
	c := &simClient{w: w, slot: slot, number: number}
	c.rebirth()
	return c
}

// rebirth begins a new life with nothing: a new machine, or a new incarnation that trusts nothing local.
func (c *simClient) rebirth() {
	lives := c.lives + 1
	*c = simClient{
		w: c.w, slot: c.slot, number: c.number, lives: lives,
		files: map[string][]Ref{}, snaps: map[string]Ref{}, vv: map[chain]Head{}, all: map[chain]Head{}, known: map[ID]Ref{}, staged: map[ID][]byte{},
		index: map[ID]Hint{}, tables: map[Name][]ID{}, nodeIndex: map[ID]Ref{},
	}
	binary.BigEndian.PutUint64(c.id[:], uint64(c.number)<<32|lives)
	c.restart()
}

// comeBack begins a new life after the last one has ended in good order, often after a long time: of that it remembers what it had accepted.
func (c *simClient) comeBack() {
	id, trust := c.id, c.trust
	c.rebirth()
	if c.w.rng.IntN(2) == 0 {
		c.id, c.trust = id, trust
		c.asleep = c.w.remote.now + time.Duration(c.w.rng.Int64N(int64(40*simSettle)))
	}
}

// restart loses what is in memory.
func (c *simClient) restart() {
	c.ready, c.cond, c.notices, c.polled, c.held = false, new(Condemned), nil, nil, nil
	c.learned, c.past = map[Name][]TableEntry{}, new(past)
	if c.slot.repo != nil {
		c.slot.repo.past = c.past
	}
}

func (c *simClient) use(v *simView) { c.slot.use(v, c.past) }

func (c *simClient) chain() chain { return chain{c.id, c.reg.Incarnation} }

// needs calls fn with every multichunk that the client may still read from.
func (c *simClient) needs(fn func(simNeed)) {
	if c.retired || c.isEvicted() {
		return
	}
	for _, refs := range c.files {
		for _, ref := range refs {
			if !ref.Hint.IsZero() {
				fn(needOf(ref))
			}
		}
	}
	for _, ref := range slices.Concat(c.held, slices.Collect(maps.Values(c.known))) {
		fn(needOf(ref))
	}
	for _, root := range c.snaps {
		for n := range c.w.trees[treeOf(root)] {
			fn(n)
		}
	}
	if c.intent != nil {
		for n := range c.intent.oracle.needs {
			fn(n)
		}
	}
}

func (c *simClient) isEvicted() bool {
	if c.reg == nil {
		return false
	}
	_, evicted := c.w.evicted[c.chain()]
	return evicted
}

// act takes one step.
func (c *simClient) act() {
	w := c.w
	if c.asleep > w.remote.now {
		return
	}
	c.use(w.view())
	switch n := w.rng.IntN(200); {
	case n < 5:
		c.restart()
	case n < 9:
		c.asleep = w.remote.now + time.Duration(w.rng.Int64N(int64(4*simSettle)))
	case n < 10:
		c.asleep = w.remote.now + time.Duration(w.rng.Int64N(int64(200*simSettle)))
	case n < 11:
		c.lose()
	case n < 14:
		c.retire()
	case n < 28:
		c.judge(c.readNotices())
	case n < 36:
		c.judge(c.poll())
	case n < 46:
		c.judge(c.merge())
	case n < 56:
		c.judge(c.learn())
	case n < 92:
		c.write()
	case n < 96:
		c.snapshot()
	case n < 102:
		c.open()
	case n < 110:
		c.judge(c.upload())
	case n < 120:
		c.judge(c.seal())
	case n < 130:
		c.judge(c.publish())
	case n < 135:
		c.judge(c.answer())
	default:
		c.judge(c.sync())
	}
	c.checkNeeds()
}

// judge lets through what comes of injected errors: all else is a violation, but for what an evicted client meets.
func (c *simClient) judge(err error) {
	if err != nil && !errors.Is(err, errInjected) && !c.isEvicted() {
		c.w.fail("client %d: %v", c.number, err)
	}
}

// checkNeeds sees that everything the client refers to is there.
func (c *simClient) checkNeeds() {
	c.needs(func(n simNeed) {
		if !c.w.readable(n) {
			c.w.fail("client %d refers to %v in multichunk %v, which is deleted", c.number, n.id, n.at)
		}
	})
}

// rest brings a client to rest when all faults have ended.
func (c *simClient) rest() {
	c.use(c.w.view())
	c.judge(c.sync())
	c.checkNeeds()
}

// sync does all that brings the client up to date.
func (c *simClient) sync() error {
	for _, step := range []func() error{c.readNotices, c.poll, c.merge, c.publish, c.upload, c.seal, c.publish} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// register makes the client known. Whatever it reads before does not count.
func (c *simClient) register() error {
	if c.registered || c.retired {
		return nil
	}
	if c.w.rng.IntN(8) > 0 {
		// An answer that gets lost leaves a registration that is nobody's, and blocks everything until it is evicted.
		view := c.slot.view
		defer func() { c.slot.view = view }()
		c.slot.view = &simView{r: &c.w.remote, after: -1}
	}
	s, key, err := c.slot.repo.sealRegistration(c.id, "sim", uint32(c.number+1))
	if err == nil {
		err = putSmall(c.w.ctx, c.slot.repo.st, s.Name, s.Wire)
	}
	if err != nil {
		return err
	}
	c.reg, c.key, c.registered = &s.Registration, key, true
	return nil
}

// readNotices makes the client go by what is condemned.
func (c *simClient) readNotices() error {
	if c.w.faults.registersLate {
		if c.reg == nil {
			c.reg = &Registration{Client: c.id}
		}
	} else if err := c.register(); err != nil {
		return err
	}
	if c.retired {
		return nil
	}
	var also []NoticeID
	if c.head != nil && !c.w.faults.forgetsAcks {
		also = c.head.Acks
	}
	present, fresh, err := c.cond.Read(c.w.ctx, c.slot.repo, also)
	if err != nil {
		return err
	}
	for _, name := range fresh {
		c.forget(name)
	}
	if !c.ready || c.cond.MustReadPast() {
		if _, err := c.slot.repo.ReadPast(c.w.ctx); err != nil {
			return err
		}
		c.cond.NotePast(c.slot.repo)
	}
	if !slices.Equal(c.notices, present) && !c.w.faults.keepsPolled {
		c.polled = nil
	}
	c.notices = present
	c.ready = true
	if c.cond.Evicted(c.id, c.reg.Incarnation) {
		c.rebirth()
	}
	return nil
}

// forget takes a condemned multichunk out of the index.
func (c *simClient) forget(n Name) {
	if c.w.faults.keepsIndex {
		return
	}
	for _, id := range c.tables[n] {
		if c.index[id].Multichunk == n {
			delete(c.index, id)
		}
	}
	delete(c.tables, n)
}

func (c *simClient) addTable(n Name, table []TableEntry) {
	for _, e := range table {
		c.index[e.ID] = e.Hint
		c.tables[n] = append(c.tables[n], e.ID)
	}
}

// poll looks for other clients' heads.
func (c *simClient) poll() error {
	if !c.ready || c.retired {
		return nil
	}
	heads, err := c.slot.repo.Poll(c.w.ctx, &c.trust)
	if err != nil {
		return err
	}
	if !c.w.faults.mergesEvicted && !c.w.faults.mergesEnded {
		heads = c.cond.Heads(heads)
	}
	c.polled = heads
	return nil
}

// learn reads the table of a multichunk that some commit announces, or puts one into the index that was read before.
func (c *simClient) learn() error {
	if !c.ready {
		return nil
	}
	for _, n := range slices.SortedFunc(maps.Keys(c.learned), compareNames) {
		table := c.learned[n]
		if !c.cond.Has(n) || c.w.faults.keepsIndex {
			c.addTable(n, table)
		}
		delete(c.learned, n)
		return nil
	}
	if len(c.w.moved) > 0 && c.w.rng.IntN(3) == 0 {
		n := c.w.moved[c.w.rng.IntN(len(c.w.moved))]
		kind, table, err := c.slot.repo.ReadTable(c.slot.repo.RemoteReader(c.w.ctx, n), -1, n)
		if err == nil && kind == KindData && c.tables[n] == nil {
			c.learned[n] = table
		}
		if errors.Is(err, remote.ErrNotExist) {
			err = nil
		}
		return err
	}
	if len(c.polled) == 0 {
		return nil
	}
	h := c.polled[c.w.rng.IntN(len(c.polled))]
	commit, err := c.slot.repo.GetCommit(c.w.ctx, h)
	for range c.w.rng.IntN(3) {
		if err == nil && commit.Seq > 1 {
			commit, err = c.slot.repo.before(c.w.ctx, commit)
		}
	}
	if errors.Is(err, remote.ErrNotExist) {
		return nil // it has been polled long ago
	}
	if err != nil {
		return err
	}
	for _, m := range commit.Multichunks {
		if m.Kind != KindData || c.tables[m.Name] != nil {
			continue
		}
		_, table, err := c.slot.repo.ReadTable(c.slot.repo.RemoteReader(c.w.ctx, m.Name), -1, m.Name)
		if errors.Is(err, remote.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		c.learned[m.Name] = table
	}
	return nil
}

// simContents is how many different chunks there are.
const simContents = 16

func simContent(i int) []byte { return fmt.Appendf(nil, "content %d", i) }

// write changes a file: all of it, its end, or that it is there at all.
func (c *simClient) write() {
	if !c.ready || c.retired {
		return
	}
	rng := c.w.rng
	name := fmt.Sprintf("%c/%d", 'a'+rng.IntN(3), rng.IntN(3))
	switch n := rng.IntN(10); {
	case n < 3:
		delete(c.files, name)
	case n < 5 && len(c.files[name]) > 0 && len(c.files[name]) < 4:
		c.files[name] = append(slices.Clone(c.files[name]), c.store(rng.IntN(simContents)))
	default:
		c.files[name] = []Ref{c.store(rng.IntN(simContents))}
	}
}

// store deduplicates a chunk, or stages it.
func (c *simClient) store(content int) Ref {
	data := simContent(content)
	id := c.slot.repo.ChunkID(data)
	if h, ok := c.index[id]; ok {
		return Ref{ID: id, Hint: h}
	}
	c.staged[id] = data
	return Ref{ID: id}
}

// upload packs and puts what is staged.
func (c *simClient) upload() error {
	if len(c.staged) == 0 || !c.ready || c.intent != nil {
		return nil
	}
	var sealed *Sealed
	p := c.slot.repo.NewPacker(KindData, func(_ context.Context, s *Sealed) error {
		sealed = s
		c.w.packed(s)
		return nil
	})
	for _, id := range slices.SortedFunc(maps.Keys(c.staged), compareIDs) {
		if err := p.Add(c.w.ctx, id, c.staged[id]); err != nil {
			return err
		}
	}
	if err := p.Flush(c.w.ctx); err != nil {
		return err
	}
	if err := c.slot.Put(c.w.ctx, ObjectName(sealed.Name), slices.Clone(sealed.Wire)); err != nil {
		return err
	}
	c.addTable(sealed.Name, sealed.Table)
	c.added = append(c.added, sealed.Name)
	hints := map[ID]Hint{}
	for _, e := range sealed.Table {
		hints[e.ID] = e.Hint
	}
	for _, refs := range c.files {
		for i := range refs {
			if refs[i].Hint.IsZero() {
				refs[i].Hint = hints[refs[i].ID]
			}
		}
	}
	c.staged = map[ID][]byte{}
	return nil
}

func compareIDs(a, b ID) int { return slices.Compare(a[:], b[:]) }

// snapshot names the newest published state, or drops a name.
func (c *simClient) snapshot() {
	name := fmt.Sprintf("s%d", c.w.rng.IntN(3))
	if _, ok := c.snaps[name]; ok {
		delete(c.snaps, name)
	} else if !c.stateRoots[0].IsZero() {
		c.snaps[name] = c.stateRoots[0]
	}
}

// open opens a file, or closes all.
func (c *simClient) open() {
	if c.w.rng.IntN(4) == 0 {
		c.held = nil
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		for _, ref := range c.files[name] {
			if !ref.Hint.IsZero() && c.w.rng.IntN(4) == 0 && len(c.held) < 4 {
				c.held = append(c.held, ref)
			}
		}
	}
}

// lose is a machine that is lost.
func (c *simClient) lose() {
	if c.reg != nil && c.registered {
		// Somebody has to say so, or nothing is ever collected again; nothing of it can come to life later.
		h := Head{Client: c.id, Incarnation: c.reg.Incarnation}
		if c.head != nil {
			h = c.head.Head()
		}
		if c.intent != nil {
			return
		}
		err := c.slot.repo.putNotice(c.w.ctx, &Notice{Evicted: []Head{h}})
		c.w.noteEvictions()
		if err != nil {
			c.judge(err) // it may be there even so
			return
		}
	}
	c.rebirth()
}

// retire publishes that the client needs nothing any more.
func (c *simClient) retire() {
	if !c.ready || c.retired || c.head == nil || c.intent != nil || c.changed() {
		return
	}
	commit := c.next()
	commit.Retired, commit.Held = true, nil
	if err := c.sealAgain(commit); err != nil {
		c.judge(err)
		return
	}
	c.judge(c.publish())
}

// changed reports whether the volume is not what the newest commit says.
func (c *simClient) changed() bool {
	return c.head == nil || !maps.Equal(c.stateFiles, c.describe())
}

// describe returns what the volume holds, to be compared.
func (c *simClient) describe() map[string]string {
	d := map[string]string{}
	for name, refs := range c.files {
		for _, ref := range refs {
			d[name] += string(ref.ID[:])
		}
	}
	for name, root := range c.snaps {
		d["snapshot "+name] = string(root.ID[:])
	}
	return d
}

func (c *simClient) next() *Commit {
	commit := c.reg.Next(c.head)
	commit.Volume = c.slot.repo.cfg.Volume
	commit.Acks = slices.Clone(c.notices)
	if !c.w.faults.hidesHeld {
		commit.Held = slices.Clone(c.held)
	}
	for _, name := range c.added {
		commit.Multichunks = append(commit.Multichunks, MultichunkInfo{Name: name, Kind: KindData})
	}
	for ch, h := range c.vv {
		if ch != c.chain() && !c.slot.repo.HasPassed(h) && !(c.w.faults.prunesEarly && c.cond.HasEnded(h)) {
			commit.Seen = append(commit.Seen, h)
		}
	}
	slices.SortFunc(commit.Seen, compareHeads)
	return commit
}

// seal makes a commit of the volume, if there is anything to tell.
func (c *simClient) seal() error {
	if !c.ready || c.retired || c.intent != nil || len(c.staged) > 0 {
		return nil
	}
	if err := c.register(); err != nil {
		return err
	}
	commit := c.next()
	if !c.changed() && slices.Equal(commit.Acks, c.head.Acks) {
		return nil
	}
	if c.w.faults.acksEarly && c.head != nil && !slices.Equal(commit.Acks, c.head.Acks) {
		return c.sealAgain(commit)
	}
	i, err := c.packTrees(commit)
	if err != nil {
		return err
	}
	return c.sealCommit(commit, i)
}

// packTrees packs the trees of a commit: directories, root and snapshots. What of them is known is shared.
func (c *simClient) packTrees(commit *Commit) (*simIntent, error) {
	var sealed *Sealed
	t := &simPack{c: c, used: map[ID]Ref{}, p: c.slot.repo.NewPacker(KindNodes, func(_ context.Context, s *Sealed) error {
		sealed = s
		c.w.packed(s)
		return nil
	})}
	dirs := map[string]*Node{}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		if dirs[name[:1]] == nil {
			dirs[name[:1]] = &Node{}
		}
		dirs[name[:1]].Entries = append(dirs[name[:1]].Entries, Entry{Key: []byte(name), Refs: c.files[name]})
	}
	root, snaps, tree := &Node{}, &Node{}, map[simNeed]bool{}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		addNeeds(tree, dirs[dir])
		root.Entries = append(root.Entries, Entry{Key: []byte(dir), Refs: []Ref{t.add(dirs[dir])}})
	}
	t.placeAll()
	for i := range root.Entries {
		root.Entries[i].Refs[0] = t.used[root.Entries[i].Refs[0].ID]
	}
	addNeeds(tree, root)
	for _, name := range slices.Sorted(maps.Keys(c.snaps)) {
		snaps.Entries = append(snaps.Entries, Entry{Key: []byte(name), Refs: []Ref{c.snaps[name]}})
	}
	commit.Root, commit.Snapshots = t.add(root), t.add(snaps)
	t.placeAll()
	commit.Root, commit.Snapshots = t.used[commit.Root.ID], t.used[commit.Snapshots.ID]
	if t.err == nil {
		t.err = t.p.Flush(c.w.ctx)
	}
	if t.err == nil && sealed != nil {
		t.err = c.slot.Put(c.w.ctx, ObjectName(sealed.Name), slices.Clone(sealed.Wire))
	}
	if t.err != nil {
		return nil, t.err
	}
	return &simIntent{known: t.used, files: c.describe(), needs: c.needsOf(commit, tree)}, nil
}

// needsOf returns which multichunks a commit needs, of whose tree the multichunks below the root are given.
func (c *simClient) needsOf(commit *Commit, tree map[simNeed]bool) map[simNeed]bool {
	if !commit.Root.IsZero() {
		tree[needOf(commit.Root)] = true
		c.w.trees[treeOf(commit.Root)] = tree
	}
	needs := maps.Clone(tree)
	if !commit.Snapshots.IsZero() {
		needs[needOf(commit.Snapshots)] = true
	}
	for _, root := range c.snaps {
		maps.Copy(needs, c.w.trees[treeOf(root)])
	}
	return needs
}

func addNeeds(needs map[simNeed]bool, n *Node) {
	for i := range n.Entries {
		for _, ref := range n.Entries[i].Refs {
			needs[needOf(ref)] = true
		}
	}
}

// simPack packs the nodes of a commit.
type simPack struct {
	c     *simClient
	p     *Packer
	used  map[ID]Ref
	fresh []ID // that have no hint yet
	err   error
}

// add adds a node unless it is known, and returns its reference, without a hint if it is new.
func (t *simPack) add(n *Node) Ref {
	if len(n.Entries) == 0 || t.err != nil {
		return Ref{}
	}
	c := t.c
	ref := Ref{ID: c.slot.repo.NodeID(AppendCanonical(nil, n)), Kind: RefNode}
	if known, ok := t.used[ref.ID]; ok {
		return known
	}
	if known, ok := c.known[ref.ID]; ok {
		ref = known
	} else if known, ok := c.nodeIndex[ref.ID]; ok && c.w.faults.nodesByIndex {
		ref = known
	} else {
		t.fresh = append(t.fresh, ref.ID)
		t.err = t.p.Add(c.w.ctx, ref.ID, AppendNode(nil, n))
	}
	t.used[ref.ID] = ref
	return ref
}

// placeAll fills in where the new nodes lie.
func (t *simPack) placeAll() {
	if t.err == nil {
		t.err = t.p.CloseGroup(t.c.w.ctx)
	}
	for _, id := range t.fresh {
		ref := t.used[id]
		ref.Hint, _ = t.p.Hint(id)
		t.used[id], t.c.nodeIndex[id] = ref, ref
	}
	t.fresh = nil
}

// sealCommit keeps a commit on the disk, to be put.
func (c *simClient) sealCommit(commit *Commit, i *simIntent) error {
	sealed, err := c.slot.repo.SealCommit(commit, c.key)
	if err != nil {
		return err
	}
	o := &simCommit{head: sealed.Head, vv: map[chain]Head{}, needs: map[simNeed]bool{}}
	maps.Copy(o.vv, c.all)
	o.vv[c.chain()] = sealed.Head
	maps.Copy(o.needs, i.needs)
	i.sealed, i.commit, i.oracle = sealed, commit, o
	c.intent = i
	return nil
}

// sealAgain is sealCommit for a commit that holds what the head does.
func (c *simClient) sealAgain(commit *Commit) error {
	commit.Root, commit.Snapshots, commit.Seen = c.head.Root, c.head.Snapshots, c.head.Seen
	return c.sealCommit(commit, &simIntent{known: c.known, files: c.stateFiles, needs: c.w.commits[c.head.Head()].needs})
}

// answer acknowledges what is to be deleted without publishing what has changed, as a client does while the remote is full. It says again
// what the newest commit says that has its own and that it has merged, and holds what it refers to beside that.
func (c *simClient) answer() error {
	if !c.ready || c.retired || c.intent != nil || c.head == nil {
		return nil
	}
	commit, from := c.next(), c.head
	if slices.Equal(commit.Acks, c.head.Acks) {
		return nil
	}
	for _, h := range slices.SortedFunc(maps.Values(c.vv), compareHeads) {
		other, err := c.slot.repo.GetCommit(c.w.ctx, h)
		if errors.Is(err, remote.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if Dominates(other, from) && len(c.counting([]Head{h})) > 0 {
			from = other
		}
	}
	commit.Root, commit.Snapshots = from.Root, from.Snapshots
	commit.Seen = c.counting(slices.DeleteFunc(append(slices.Clone(from.Seen), from.Head()), func(h Head) bool { return h.chain() == c.chain() }))
	slices.SortFunc(commit.Seen, compareHeads)
	if !c.w.faults.answersBare {
		for _, name := range slices.Sorted(maps.Keys(c.files)) {
			for _, ref := range c.files[name] {
				if c.cond.Has(ref.Hint.Multichunk) {
					commit.Held = append(commit.Held, ref)
				}
			}
		}
		for _, id := range slices.SortedFunc(maps.Keys(c.known), compareIDs) {
			commit.Held = append(commit.Held, c.known[id])
		}
	}
	c.w.counts.answers++
	needs := maps.Clone(c.w.commits[from.Head()].needs)
	if err := c.sealCommit(commit, &simIntent{known: c.known, files: map[string]string{"": "not what it is"}, needs: needs}); err != nil {
		return err
	}
	seen := maps.Clone(c.w.commits[from.Head()].vv)
	seen[c.chain()] = c.intent.sealed.Head
	c.intent.oracle.vv = seen
	return nil
}

// publish puts the commit that is sealed.
func (c *simClient) publish() error {
	if c.intent == nil || !c.ready {
		return nil
	}
	i := c.intent
	// It counts from the moment in which it may be there.
	c.w.commits[i.oracle.head] = i.oracle
	err := c.slot.repo.PutSealed(c.w.ctx, i.sealed)
	if o, ok := c.w.remote.objects.Get(i.sealed.Name); ok && o.deleted == 0 {
		c.w.newest[c.chain()] = i.oracle.head
	}
	if err != nil {
		return err
	}
	c.trust.Accept(i.sealed.Head)
	c.head, c.intent, c.added = i.commit, nil, nil // nothing is uploaded while a commit is sealed
	c.vv[c.chain()], c.all[c.chain()] = i.sealed.Head, i.sealed.Head
	c.stateRoots, c.stateFiles, c.known = [2]Ref{i.commit.Root, i.commit.Snapshots}, i.files, i.known
	c.retired = i.commit.Retired
	if c.retired {
		c.comeBack()
	}
	return nil
}

// merge takes over one of the heads that were polled, perhaps long ago.
func (c *simClient) merge() error {
	if !c.ready || c.retired || c.intent != nil || len(c.staged) > 0 {
		return nil
	}
	heads := slices.DeleteFunc(c.counting(c.polled), func(h Head) bool { return c.vv[h.chain()].Seq >= h.Seq })
	if !c.w.faults.mergesMerged {
		var err error
		if heads, err = c.slot.repo.MaximalHeads(c.w.ctx, heads); err != nil {
			return err
		}
	}
	for _, h := range heads {
		if c.reg != nil && h.chain() == c.chain() || c.vv[h.chain()].Seq >= h.Seq {
			continue
		}
		theirs, err := c.slot.repo.GetCommit(c.w.ctx, h)
		if err != nil {
			return err
		}
		if err := c.mergeCommit(theirs); err != nil {
			return fmt.Errorf("merge %s: %w", h, err)
		}
		if !c.w.calm {
			return nil
		}
	}
	return nil
}

// counting returns heads without those of incarnations that have ended.
func (c *simClient) counting(heads []Head) []Head {
	if c.w.faults.mergesEnded {
		return slices.Clone(heads)
	}
	return slices.DeleteFunc(slices.Clone(heads), func(h Head) bool { return c.cond.HasEnded(h) || c.slot.repo.HasPassed(h) })
}

// simState is what a commit's trees hold.
type simState struct {
	files map[string][]Ref
	snaps map[string]Ref
	known map[ID]Ref
}

func (c *simClient) mergeCommit(theirs *Commit) error {
	right, err := c.load(theirs)
	if err != nil {
		return err
	}
	bases, err := c.bases(theirs)
	if err != nil {
		return err
	}
	base := &simState{files: map[string][]Ref{}, snaps: map[string]Ref{}}
	for _, b := range bases {
		state, err := c.load(b)
		if err != nil {
			return fmt.Errorf("base %s: %w", b.Head(), err)
		}
		maps.Copy(base.files, state.files)
		maps.Copy(base.snaps, state.snaps)
	}
	c.files = merge3(base.files, c.files, right.files, compareRefs)
	c.snaps = merge3(base.snaps, c.snaps, right.snaps, func(a, b Ref) int { return compareIDs(a.ID, b.ID) })
	for id, ref := range right.known {
		if _, ok := c.known[id]; !ok {
			c.known[id] = ref
		}
	}
	for _, h := range append(slices.Clone(theirs.Seen), theirs.Head()) {
		if h.Seq > c.vv[h.chain()].Seq {
			c.vv[h.chain()] = h
		}
	}
	for ch, h := range c.w.commits[theirs.Head()].vv {
		if h.Seq > c.all[ch].Seq {
			c.all[ch] = h
		}
	}
	return nil
}

// bases returns the newest commits that both the volume and theirs have seen.
func (c *simClient) bases(theirs *Commit) ([]*Commit, error) {
	common := map[chain]Head{}
	for ch, mine := range c.vv {
		h := theirs.sees(ch)
		if mine.Seq < h.Seq {
			h = mine
		}
		if len(c.counting([]Head{h})) > 0 {
			common[ch] = h
		}
	}
	return c.slot.repo.bases(c.w.ctx, common)
}

func compareRefs(a, b []Ref) int {
	return slices.CompareFunc(a, b, func(a, b Ref) int { return compareIDs(a.ID, b.ID) })
}

// merge3 merges two states of a map: changes win over what is as it was, also over its removal, and the larger of two changes.
func merge3[V any](base, mine, theirs map[string]V, compare func(a, b V) int) map[string]V {
	merged := map[string]V{}
	same := func(a V, inA bool, b V, inB bool) bool { return inA == inB && (!inA || compare(a, b) == 0) }
	names := map[string]bool{}
	for _, m := range []map[string]V{mine, theirs} {
		for name := range m {
			names[name] = true
		}
	}
	for name := range names {
		b, inB := base[name]
		m, inM := mine[name]
		t, inT := theirs[name]
		switch {
		case same(m, inM, t, inT), same(t, inT, b, inB):
			if inM {
				merged[name] = m
			}
		case same(m, inM, b, inB):
			if inT {
				merged[name] = t
			}
		case inM && (!inT || compare(m, t) > 0):
			merged[name] = m
		default:
			merged[name] = t
		}
	}
	return merged
}

// load reads all of a commit's trees.
func (c *simClient) load(commit *Commit) (*simState, error) {
	s := &simState{files: map[string][]Ref{}, snaps: map[string]Ref{}, known: map[ID]Ref{}}
	root, err := c.node(commit.Root, s)
	if err != nil {
		return nil, err
	}
	for _, e := range root.Entries {
		dir, err := c.node(e.Refs[0], s)
		if err != nil {
			return nil, err
		}
		for _, f := range dir.Entries {
			s.files[string(f.Key)] = slices.Clone(f.Refs)
		}
	}
	snaps, err := c.node(commit.Snapshots, s)
	if err != nil {
		return nil, err
	}
	for _, e := range snaps.Entries {
		s.snaps[string(e.Key)] = e.Refs[0]
	}
	return s, nil
}

// moved reads the group in which a node lies that is not where its hint says; err is what came of that.
func (c *simClient) moved(ref Ref, err error) (*Group, error) {
	repo := c.slot.repo
	if _, err := repo.ReadMoves(c.w.ctx); err != nil {
		return nil, err
	}
	for _, to := range repo.MovedTo(ref.Hint.Multichunk) {
		_, table, terr := repo.ReadTable(repo.RemoteReader(c.w.ctx, to), -1, to)
		if terr != nil && !errors.Is(terr, remote.ErrNotExist) {
			return nil, terr
		}
		for _, e := range table {
			if e.ID == ref.ID {
				return repo.ReadGroup(repo.RemoteReader(c.w.ctx, to), -1, e.Hint)
			}
		}
	}
	return nil, err
}

func (c *simClient) node(ref Ref, s *simState) (*Node, error) {
	if ref.IsZero() {
		return &Node{}, nil
	}
	repo := c.slot.repo
	g, err := repo.ReadGroup(repo.RemoteReader(c.w.ctx, ref.Hint.Multichunk), -1, ref.Hint)
	if errors.Is(err, remote.ErrNotExist) {
		g, err = c.moved(ref, err)
	}
	if err != nil {
		return nil, err
	}
	data, ok := g.Find(ref.ID)
	if !ok {
		return nil, fmt.Errorf("node %v: %w", ref.ID, ErrNotFound)
	}
	s.known[ref.ID] = ref
	c.nodeIndex[ref.ID] = ref
	return repo.CheckNode(ref.ID, data)
}
