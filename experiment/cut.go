package experiment

import (
	"context"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
)

// A cut is all files cut in one way. Each new chunk is counted, and samples of groups of new chunks are compressed.
type cut struct {
	set     chunking.Set
	cutters [3]cutter
	packed  []*packing

	chunks *sketch
	recent *filter // hashes of chunks: what it knows is not sampled again
	total  int64   // chunks
	bytes  int64   // that were cut

	group  []byte // new chunks, if the group is one that is sampled
	size   int    // bytes of the group
	number uint64 // of the group
	sample []byte // some groups, for measuring speed
}

// packing is what a setting makes of the groups of a cut.
type packing struct {
	setting       Setting
	stages        *store.Stages
	before, after float64 // bytes of groups, weighted by how many each stands for
}

const (
	groupSize  = store.DefaultGroup
	denseUntil = 32      // groups that are all compressed; of as many after them half, and so on
	sampleSize = 4 << 20 // bytes to measure speed with
)

func newCut(s Setting) (*cut, error) {
	c := &cut{set: s.store.Chunkers, chunks: newSketch(sketchLimit), recent: newFilter()}
	stages, err := store.NewStages(s.store)
	if err != nil {
		return nil, err
	}
	for kind, chunker := range stages.Repository().Chunkers() {
		c.cutters[kind] = cutter{chunker: chunker, emit: c.add}
	}
	return c, nil
}

// also makes the cut sample for one more setting.
func (c *cut) also(s Setting) error {
	stages, err := store.NewStages(s.store)
	c.packed = append(c.packed, &packing{setting: s, stages: stages})
	return err
}

func (c *cut) write(kind chunking.Kind, block []byte, eof bool) error {
	c.bytes += int64(len(block))
	return c.cutters[kind].write(block, eof)
}

// add counts a chunk. Zeros are not stored.
func (c *cut) add(chunk []byte) error {
	if chunking.IsZero(chunk) {
		return nil
	}
	c.total++
	h := xxhash.Sum64(chunk)
	c.chunks.add(h, int64(len(chunk)))
	if c.recent.seen(h) {
		return nil
	}
	if c.size += len(chunk); c.weight() > 0 {
		c.group = append(c.group, chunk...)
	}
	if c.size >= groupSize {
		return c.closeGroup()
	}
	return nil
}

// weight returns for how many groups the current one stands, 0 if it is not sampled: of n groups about 32 and 32 times log2(n/64) are.
func (c *cut) weight() uint64 {
	stride := uint64(1)
	for c.number >= stride*denseUntil*2 {
		stride *= 2
	}
	if c.number < denseUntil || c.number%stride == 0 {
		return stride
	}
	return 0
}

// closeGroup compresses the current group, if it is one of the sample.
func (c *cut) closeGroup() error {
	if w := c.weight(); w > 0 && len(c.group) > 0 {
		for _, p := range c.packed {
			n, err := p.stages.Compress(c.group)
			if err != nil {
				return err
			}
			p.before += float64(w) * float64(len(c.group))
			p.after += float64(w) * float64(n)
		}
		if len(c.sample) < sampleSize {
			c.sample = append(c.sample, c.group...)
		}
	}
	c.group, c.size = c.group[:0], 0
	c.number++
	return nil
}

// ratio returns what compression leaves.
func (p *packing) ratio() float64 {
	if p.before == 0 {
		return 1
	}
	return p.after / p.before
}

// time returns the processor time that storing takes: all bytes are cut and named, the unique ones packed. It is what the
// sample took here.
func (c *cut) time(p *packing) (time.Duration, error) {
	if err := c.closeGroup(); err != nil || len(c.sample) == 0 {
		return 0, err
	}
	var err error
	start := processorTime()
	p.stages.Hash(c.sample, p.stages.Chunker().Ends(nil, c.sample, true))
	cutting := processorTime() - start
	if _, err = p.stages.Pack(context.Background(), c.sample); err != nil {
		return 0, err
	}
	packing := max(0, processorTime()-start-2*cutting)
	_, unique := c.chunks.unique()
	of := float64(len(c.sample))
	return time.Duration(float64(cutting)*float64(c.bytes)/of + float64(packing)*float64(unique)/of), nil
}
