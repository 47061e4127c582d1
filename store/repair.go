package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/remote"
)

// RepairOptions are options of Repair. Nil is the defaults.
type RepairOptions struct {
	Check  CheckOptions // what is looked at, and where spares are
	DryRun bool         // change nothing
	Parity int          // to put beside all multichunks, old and new, thousandths; default that of the repository. It takes Check.ReadData
}

// A Fix is what Repair has done about a damaged multichunk, or would do.
type Fix struct {
	Damage
	How     string // "copy": put again as it was; "pieces": put with what could be found of it; "removed": nothing is in it or needed; "renewed": removed, and another is there; "intact": now
	Found   int    // chunks and nodes that it holds then
	Left    []ID   // that are needed of it and were found nowhere
	Refused error  // by the storage, to replace the object
	Beside  Name   // what was found lies there then; zero if nothing does
}

// RepairReport is what Repair has found and done.
type RepairReport struct {
	Before *CheckReport
	Fixes  []Fix
	Left   []Damage // that remain
	Parity int      // parity objects that have been put
}

// Repair checks the repository as Check does, and puts damaged and lost multichunks again under their names, so that all
// references to them are right again: as they were, if there is a spare, else with all that is intact in them, in other
// multichunks and in the spares. Before a damaged object is replaced by pieces, its intact pieces are put under another name,
// so that nothing is lost wherever Repair stops; Repair may be run again at any time. It deletes nothing but such a name of
// its own.
func (r *Repository) Repair(ctx context.Context, o *RepairOptions) (*RepairReport, error) {
	if o == nil {
		o = new(RepairOptions)
	}
	if err := r.ReadOnly(); err != nil && !o.DryRun {
		return nil, fmt.Errorf("repair: %w", err)
	}
	if o.Parity > 0 && !o.DryRun { // first, so that nobody goes on without
		if err := r.SetParity(ctx, o.Parity); err != nil {
			return nil, fmt.Errorf("repair: %w", err)
		}
	}
	check := o.Check
	check.mending, check.parity = !o.DryRun, o.Parity
	c, err := r.check(ctx, &check)
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	report := &RepairReport{Before: &c.report}
	for _, d := range slices.Concat(c.report.Damages, c.report.Healed) {
		f, err := c.repair(ctx, &d, o.DryRun)
		if err != nil {
			return nil, fmt.Errorf("repair %s: %w", d.Object, err)
		}
		if f != nil {
			report.Fixes = append(report.Fixes, *f)
		}
		if f != nil && len(f.Left) == 0 && (f.Refused == nil || !f.Beside.IsZero()) {
			continue
		}
		if f != nil && len(f.Left) > 0 {
			d.IDs = f.Left
		}
		report.Left = append(report.Left, d)
	}
	if c.unhooked {
		if err := c.rebuildHooks(ctx); err != nil {
			return nil, fmt.Errorf("repair lists of hooks: %w", err)
		}
	}
	if !o.DryRun {
		err = c.dropStrayParity(ctx)
		_ = r.PutBallast(ctx) // where there is no room it stays away
	}
	report.Parity = c.paritied
	return report, err
}

// repair repairs what is damaged in one multichunk. It returns nil if nothing can be done.
func (c *checker) repair(ctx context.Context, d *Damage, dry bool) (*Fix, error) {
	n := d.Multichunk
	if n.IsZero() {
		return c.repairSmall(ctx, d, dry)
	}
	b := c.broken[n]
	spare, err := c.spares.multichunk(ctx, n)
	if err != nil {
		return nil, err
	}
	if spare.wire != nil && holdsAll(spare.table, d.IDs) {
		f := &Fix{Damage: *d, How: "copy", Found: len(spare.table)}
		if dry {
			return f, nil
		}
		p, err := c.collect(ctx, n, b)
		if err == nil {
			err = c.put(ctx, f, spare.wire, p)
		}
		return f, err
	}
	if errors.Is(d.Err, ErrEpoch) {
		return nil, nil // it may be newer than our keys: then others can read what is there
	}
	p, err := c.collect(ctx, n, b)
	if err != nil {
		return nil, err
	}
	f := &Fix{Damage: *d, How: "pieces", Found: len(p.ids)}
	for _, id := range d.IDs {
		if p.data[id] == nil {
			f.Left = append(f.Left, id)
		}
	}
	switch {
	case p.intact && len(f.Left) == 0:
		f.How = "intact"
	case len(d.IDs) > 0 && len(f.Left) == len(d.IDs):
		return nil, nil // it would not hold more than now
	case len(p.ids) == 0:
		f.How = "removed"
		if !dry {
			f.Refused = c.r.st.Delete(ctx, d.Object)
		}
	case !dry:
		wire, err := c.r.sealPieces(n, p)
		if err == nil {
			err = c.put(ctx, f, wire, p)
		}
		return f, err
	}
	return f, nil
}

func holdsAll(table []TableEntry, ids []ID) bool {
	there := make(map[ID]bool, len(table))
	for i := range table {
		there[table[i].ID] = true
	}
	return !slices.ContainsFunc(ids, func(id ID) bool { return !there[id] })
}

// pieces are what could be found of a multichunk.
type pieces struct {
	kind   Kind
	ids    []ID // in their order
	data   map[ID][]byte
	intact bool // the object turns out to be whole
}

func (p *pieces) add(id ID, data []byte) {
	if p.data[id] == nil && data != nil {
		p.ids = append(p.ids, id)
		p.data[id] = slices.Clone(data)
	}
}

// collect gathers what is intact in multichunk n, and what else is needed of it from wherever it lies.
func (c *checker) collect(ctx context.Context, n Name, b *brokenMultichunk) (*pieces, error) {
	p := &pieces{kind: b.kind, data: map[ID][]byte{}}
	if err := c.collectIntact(ctx, n, p); err != nil {
		return nil, err
	}
	if p.kind == 0 {
		return p, nil
	}
	spare, err := c.spares.multichunk(ctx, n)
	if err != nil {
		return nil, err
	}
	for i := range spare.table {
		ref := refOf(spare.table[i].ID, p.kind)
		data, err := c.spares.find(ctx, ref, n)
		if err != nil {
			return nil, err
		}
		p.add(ref.ID, data)
	}
	for _, ref := range b.lost {
		data, err := c.spares.find(ctx, ref, n)
		if err != nil {
			return nil, err
		}
		p.add(ref.ID, data)
	}
	return p, c.collectElsewhere(ctx, n, b.dup, p)
}

// collectIntact takes what the object of multichunk n still has.
func (c *checker) collectIntact(ctx context.Context, n Name, p *pieces) error {
	wire, err := c.r.st.Get(ctx, ObjectName(n), 0, -1)
	switch {
	case errors.Is(err, remote.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	held, err := c.r.openMultichunk(n, wire)
	p.intact = err == nil
	lost := make(map[ID]bool)
	for _, id := range held.lost {
		lost[id] = true
	}
	if held.kind != 0 {
		p.kind = held.kind
	}
	var g *Group
	for i := range held.table {
		e := &held.table[i]
		if lost[e.ID] {
			continue
		}
		if g == nil || e.Hint != held.table[i-1].Hint {
			if g, err = c.r.ReadGroup(bytes.NewReader(wire), int64(len(wire)), e.Hint); err != nil {
				return fmt.Errorf("group that was intact: %w", err)
			}
		}
		data, _ := g.Find(e.ID)
		p.add(e.ID, data)
	}
	return nil
}

// collectElsewhere reads ids from other multichunks than n.
func (c *checker) collectElsewhere(ctx context.Context, n Name, ids []ID, p *pieces) error {
	want := map[ID]bool{}
	for _, id := range ids {
		if p.data[id] == nil {
			want[id] = true
		}
	}
	for other := range c.sizes {
		if len(want) == 0 {
			return nil
		}
		if other == n {
			continue
		}
		if err := c.takeFrom(ctx, other, want, p); err != nil && !lostObject(err) {
			return err
		}
	}
	return nil
}

// takeFrom takes what is wanted from multichunk n.
func (c *checker) takeFrom(ctx context.Context, n Name, want map[ID]bool, p *pieces) error {
	ra := c.r.RemoteReader(ctx, n)
	kind, table, err := c.r.readTable(ra, c.sizes[n], n)
	if err != nil || kind != p.kind {
		return err
	}
	var errs error
	for i := range table {
		if !want[table[i].ID] {
			continue
		}
		g, err := c.r.ReadGroup(ra, c.sizes[n], table[i].Hint)
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		for j := range g.Len() {
			if id, data := g.Chunk(j); want[id] {
				p.add(id, data)
				delete(want, id)
			}
		}
	}
	return errs
}

// put puts a multichunk anew. What stands there is removed before, since no storage need replace an object, and before that all
// pieces are put under another name.
func (c *checker) put(ctx context.Context, f *Fix, wire []byte, p *pieces) (err error) {
	size, there := c.sizes[f.Multichunk]
	if !there || size == 0 || len(p.ids) == 0 {
		if f.Refused, err = c.replace(ctx, f.Object, wire, there); f.Refused == nil && err == nil {
			err = c.checkParity(ctx, f.Multichunk, wire)
		}
		return err
	}
	beside := newName()
	safe, err := c.r.sealPieces(beside, p)
	if err == nil {
		err = putSmall(ctx, c.r.st, ObjectName(beside), safe)
	}
	if err != nil {
		return err
	}
	if f.Refused, err = c.replace(ctx, f.Object, wire, there); f.Refused != nil || err != nil {
		f.Beside = beside
		return err
	}
	if err := c.checkParity(ctx, f.Multichunk, wire); err != nil {
		return err
	}
	// Where deleting is refused it stays, and does no harm.
	_ = c.r.st.Delete(ctx, ObjectName(beside))
	return nil
}

// replace puts an object in the place of what lies there.
func (c *checker) replace(ctx context.Context, name string, wire []byte, there bool) (refused, err error) {
	if there {
		err = c.r.st.Delete(ctx, name)
	}
	if err == nil {
		err = putSmall(ctx, c.r.st, name, wire)
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, remote.ErrUnreachable) {
		return nil, err
	}
	return err, nil
}

// sealPieces makes the object of multichunk n out of pieces.
func (r *Repository) sealPieces(n Name, p *pieces) ([]byte, error) {
	s := r.blocks.newStream(p.kind)
	s.name = n
	for ids := p.ids; len(ids) > 0; {
		g := r.blocks.group()
		for len(ids) > 0 && len(g.ids) < maxGroupChunks && (len(g.ids) == 0 || g.size()+len(p.data[ids[0]]) <= r.cfg.GroupSize) {
			g.add(ids[0], p.data[ids[0]])
			ids = ids[1:]
		}
		out, err := r.blocks.appendGroup(g.out, p.kind, g.block(0, len(g.ids)))
		if err != nil {
			return nil, err
		}
		s.add(g, 0, len(g.ids), out)
		g.out = out
		r.blocks.groups.Put(g)
	}
	sealed, err := r.blocks.seal(r.keys.now.Load(), s, false)
	if err != nil {
		return nil, err
	}
	if err := r.VerifyMultichunk(n, sealed.Wire); err != nil {
		return nil, fmt.Errorf("what was put together: %w", err)
	}
	return sealed.Wire, nil
}
