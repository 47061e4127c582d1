package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// countingPacer counts what asks it, and after some of it refuses.
type countingPacer struct {
	asked  atomic.Int64
	refuse int64
}

var errHeldBack = errors.New("held back for good")

func (p *countingPacer) Background(context.Context) error {
	if n := p.asked.Add(1); p.refuse > 0 && n >= p.refuse {
		return errHeldBack
	}
	return nil
}

func (p *countingPacer) Long(ctx context.Context) (func(), error) {
	return func() {}, p.Background(ctx)
}

func (p *countingPacer) Foreground(context.Context) error { return nil }
func (p *countingPacer) Limited() bool                    { return true }
func (p *countingPacer) Worker()                          {}

// TestPackerAsks checks that the packer asks before each group that it compresses.
func TestPackerAsks(t *testing.T) {
	rng := newRand(t)
	const groups = 20
	cfg := testConfig
	cfg.GroupSize = MinGroup
	r := newTestRepository(t, cfg)
	var chunks [][]byte
	for range 2 * groups {
		chunks = append(chunks, randomBytes(rng, MinGroup/2))
	}
	p := &countingPacer{}
	r.SetPacer(p)
	packAll(t, r, KindData, chunks)
	if n := p.asked.Load(); n < groups || n > 2*groups {
		t.Errorf("asked %d times for %d groups", n, groups)
	}

	r.SetPacer(&countingPacer{refuse: 5})
	packer := r.NewPacker(KindData, new(shelf).put)
	var err error
	for _, c := range chunks {
		if err = packer.Add(t.Context(), r.ChunkID(c), c); err != nil {
			break
		}
	}
	if err == nil {
		err = packer.Flush(t.Context())
	}
	if !errors.Is(err, errHeldBack) {
		t.Errorf("packing what the pacer refuses = %v, want its error", err)
	}
}
