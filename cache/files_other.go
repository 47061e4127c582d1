//go:build !linux

package cache

import (
	"errors"
	"os"
)

func writeVec(f *os.File, off int64, parts [][]byte) (n int, err error) {
	for _, p := range parts {
		m, err := f.WriteAt(p, off+int64(n))
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Allocate cannot be offered here: F_PREALLOCATE counts from the end of the
// file alone. The write itself reports a full disk then.
func (f osFile) Allocate(off, n int64) error { return errors.ErrUnsupported }

func (f osFile) WriteOut(off, n int64) {}
