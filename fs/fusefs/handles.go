package fusefs

import "sync"

// handles gives numbers to open files. A number is used again after its release.
type handles[H any] struct {
	mu   sync.RWMutex
	open []H      // open[fh-1]
	free []uint64 // numbers to use again
}

// add returns a number for h, never 0.
func (t *handles[H]) add(h H) (fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		fh, t.free = t.free[n-1], t.free[:n-1]
		t.open[fh-1] = h
		return fh
	}
	t.open = append(t.open, h)
	return uint64(len(t.open))
}

// get returns the open file numbered fh, or the zero value.
func (t *handles[H]) get(fh uint64) (h H) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if fh-1 < uint64(len(t.open)) {
		h = t.open[fh-1]
	}
	return h
}

// remove returns the open file numbered fh, or the zero value, and gives the number back.
func (t *handles[H]) remove(fh uint64) (h H) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fh-1 < uint64(len(t.open)) {
		var none H
		h, t.open[fh-1] = t.open[fh-1], none
		t.free = append(t.free, fh)
	}
	return h
}

// drain takes all open files out.
func (t *handles[H]) drain() (left []H) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := make(map[uint64]bool, len(t.free))
	for _, fh := range t.free {
		free[fh] = true
	}
	for i, h := range t.open {
		if !free[uint64(i)+1] {
			left = append(left, h)
		}
	}
	t.open, t.free = nil, nil
	return left
}
