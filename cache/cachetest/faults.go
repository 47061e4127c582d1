package cachetest

import (
	"sync"

	"github.com/dedupfs/dedupfs/cache"
)

// Faults is cache.Files of which operations fail. Reads never do, and neither
// does what is only advice.
type Faults struct {
	cache.Files

	mu      sync.Mutex // guards all below
	ops     int
	at      int // number of the first operation that fails; 0 is none
	forever bool
	err     error
	hit     int
}

// NewFaults returns files that work as f until FailAt is called.
func NewFaults(f cache.Files) *Faults { return &Faults{Files: f} }

// FailAt lets operation number i from now on, counted from 1, fail with err: that
// one alone, or with forever all after it too.
func (f *Faults) FailAt(i int, err error, forever bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops, f.at, f.err, f.forever, f.hit = 0, i, err, forever, 0
}

// Heal lets everything work again.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = 0
}

// Hit returns how many operations have failed since FailAt.
func (f *Faults) Hit() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit
}

func (f *Faults) step(op, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops++
	if f.at == 0 || f.ops < f.at || f.ops > f.at && !f.forever {
		return nil
	}
	f.hit++
	return pathError(op, name, f.err)
}

// Create implements cache.Files.
func (f *Faults) Create(name string) (cache.File, error) {
	if err := f.step("create", name); err != nil {
		return nil, err
	}
	file, err := f.Files.Create(name)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f, name}, nil
}

// Open implements cache.Files.
func (f *Faults) Open(name string) (cache.File, error) {
	file, err := f.Files.Open(name)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f, name}, nil
}

// Rename implements cache.Files.
func (f *Faults) Rename(from, to string) error {
	if err := f.step("rename", from); err != nil {
		return err
	}
	return f.Files.Rename(from, to)
}

// Remove implements cache.Files.
func (f *Faults) Remove(name string) error {
	if err := f.step("remove", name); err != nil {
		return err
	}
	return f.Files.Remove(name)
}

// Mkdir implements cache.Files.
func (f *Faults) Mkdir(name string) error {
	if err := f.step("mkdir", name); err != nil {
		return err
	}
	return f.Files.Mkdir(name)
}

// SyncDir implements cache.Files.
func (f *Faults) SyncDir(name string) error {
	if err := f.step("sync", name); err != nil {
		return err
	}
	return f.Files.SyncDir(name)
}

type faultyFile struct {
	cache.File
	f    *Faults
	name string
}

// WriteAt writes a part of what it is given when it fails.
func (h *faultyFile) WriteAt(off int64, parts ...[]byte) error {
	if err := h.f.step("write", h.name); err != nil {
		if len(parts) > 0 {
			h.File.WriteAt(off, parts[0][:len(parts[0])/2])
		}
		return err
	}
	return h.File.WriteAt(off, parts...)
}

// Sync loses what it should have written when it fails, if the file is a Disk's.
func (h *faultyFile) Sync() error {
	if err := h.f.step("sync", h.name); err != nil {
		if file, ok := h.File.(*handle); ok {
			file.loseWrites()
		}
		return err
	}
	return h.File.Sync()
}

func (h *faultyFile) Truncate(n int64) error {
	if err := h.f.step("truncate", h.name); err != nil {
		return err
	}
	return h.File.Truncate(n)
}

func (h *faultyFile) Allocate(off, n int64) error {
	if err := h.f.step("allocate", h.name); err != nil {
		return err
	}
	return h.File.Allocate(off, n)
}
