package store

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// Stages are the steps that the bytes of a file take into a multichunk, one by one, for measuring. They use keys of their own
// and no storage.
type Stages struct {
	r *Repository
	c chunking.Chunker
}

// NewStages returns the stages of a repository with the given configuration, of which zero fields are the defaults, cutting
// with its default chunker.
func NewStages(cfg Config) (*Stages, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	rand.Read(cfg.Repository[:])
	r, err := newRepository(nil, seal.NewKeyring(cfg.Repository), cfg)
	if err != nil {
		return nil, err
	}
	return &Stages{r: r, c: r.Chunkers()[chunking.KindDefault]}, nil
}

// Chunker returns the chunker that cuts.
func (s *Stages) Chunker() chunking.Chunker { return s.c }

// Repository returns a repository without storage: it cuts, names and packs, and has nothing to read.
func (s *Stages) Repository() *Repository { return s.r }

// Compression returns the method of compression.
func (s *Stages) Compression() string { return s.r.cfg.Compression }

// Hash computes the ids of the chunks of data that end at ends.
func (s *Stages) Hash(data []byte, ends []int) {
	start := 0
	for _, end := range ends {
		s.r.ChunkID(data[start:end])
		start = end
	}
}

// Compress compresses data in groups, and returns how many bytes that gives.
func (s *Stages) Compress(data []byte) (int, error) {
	total := 0
	for len(data) > 0 {
		n := min(len(data), s.r.cfg.GroupSize)
		_, packed, err := s.r.blocks.compress(nil, data[:n])
		if err != nil {
			return 0, err
		}
		total += len(packed)
		data = data[n:]
	}
	return total, nil
}

// Seal encrypts data in objects of the size of a multichunk.
func (s *Stages) Seal(data []byte) error {
	var wire []byte
	for len(data) > 0 {
		n := min(len(data), s.r.cfg.MultichunkSize)
		var err error
		if wire, err = s.r.keys.Seal(wire[:0], seal.KindMultichunk, "data/00/00", data[:n]); err != nil {
			return fmt.Errorf("seal: %w", err)
		}
		data = data[n:]
	}
	return nil
}

// Pack takes data all the way: it is cut, named, compressed and sealed, as when a file is stored that nobody has seen yet.
// It returns the length of the objects.
func (s *Stages) Pack(ctx context.Context, data []byte) (int, error) {
	total := 0
	p := s.r.NewPacker(KindData, func(_ context.Context, m *Sealed) error {
		total += len(m.Wire)
		m.Release()
		return nil
	})
	start := 0
	for _, end := range s.c.Ends(nil, data, true) {
		chunk := data[start:end]
		if err := p.Add(ctx, s.r.ChunkID(chunk), chunk); err != nil {
			return 0, err
		}
		start = end
	}
	return total, p.Flush(ctx)
}
