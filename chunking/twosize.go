package chunking

import "io"

// An Index knows which chunks have been stored.
type Index interface {
	Has(chunk []byte) (bool, error)
}

// TwoSize cuts with two chunk sizes (Kruus et al. 2010): large chunks where the
// data are all known or all new, and small ones where known meets new. It is
// not a Chunker, for its cut depends on what an index knows: the same stream
// may be cut otherwise the next time.
type TwoSize struct {
	Large, Small Chunker
	Index        Index
}

// Cut cuts r and calls emit for every chunk in order; data is valid only during
// the call. A large chunk that is new, next to one that is known, is cut small.
func (t TwoSize) Cut(r io.Reader, emit func(data []byte) error) error {
	large := NewReader(r, t.Large)
	var held []byte // a new large chunk whose successor is not known yet
	var ends []int
	small := func(chunk []byte) error {
		ends = t.Small.Ends(ends[:0], chunk, true)
		start := 0
		for _, end := range ends {
			if err := emit(chunk[start:end]); err != nil {
				return err
			}
			start = end
		}
		return nil
	}
	afterKnown := false
	for {
		chunk, err := large.Next()
		end := err == io.EOF
		if err != nil && !end {
			return err
		}
		known := false
		if !end {
			if known, err = t.Index.Has(chunk); err != nil {
				return err
			}
		}
		if len(held) > 0 {
			cut := emit
			if known {
				cut = small
			}
			if err := cut(held); err != nil {
				return err
			}
			held = held[:0]
		}
		switch {
		case end:
			return nil
		case known:
			err = emit(chunk)
		case afterKnown:
			err = small(chunk)
		default:
			held = append(held, chunk...)
		}
		if err != nil {
			return err
		}
		afterKnown = known
	}
}
