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
	var held []byte // a new chunk after a new one: the next decides how it is cut
	afterKnown := false
	for {
		chunk, err := large.Next()
		if err == io.EOF {
			return t.emitNew(held, false, emit)
		}
		if err != nil {
			return err
		}
		known, err := t.Index.Has(chunk)
		if err != nil {
			return err
		}
		if err := t.emitNew(held, known, emit); err != nil {
			return err
		}
		held = held[:0]
		switch {
		case known:
			err = emit(chunk)
		case afterKnown:
			err = t.emitNew(chunk, true, emit)
		default:
			held = append(held, chunk...)
		}
		if err != nil {
			return err
		}
		afterKnown = known
	}
}

// emitNew emits a large chunk that is new, cut small if it lies at a border.
func (t TwoSize) emitNew(chunk []byte, border bool, emit func(data []byte) error) error {
	if len(chunk) == 0 {
		return nil
	}
	if !border {
		return emit(chunk)
	}
	start := 0
	for _, end := range t.Small.Ends(nil, chunk, true) {
		if err := emit(chunk[start:end]); err != nil {
			return err
		}
		start = end
	}
	return nil
}
