package experiment

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Result is what one configuration makes of one data set: experiment 1 of the thesis, chunking efficiency.
type Result struct {
	Set      string    `json:"set"`
	Config   string    `json:"config"`
	Versions []Account `json:"versions"`
	Sum      Account   `json:"sum"`
	Ratio    float64   `json:"temporal_deduplication_ratio"` // bytes of all versions for each byte stored
	Overhead float64   `json:"metadata_overhead"`            // share of lists and tables in what is stored
	Stored   int64     `json:"stored_bytes"`
	Memory   int64     `json:"peak_memory_bytes"` // of the process; 0 if it did other things too
	Load     float64   `json:"cpu_share"`         // processor time for each second, with the pauses
}

// Chunking stores the versions of the data set in dir, the directories in it, under one configuration. Nothing is written.
// The pauses of a multichunker are added to the time, not slept, unless c says so. pace, unless nil, is called before each chunk, which it may hold back.
func Chunking(ctx context.Context, dir string, c Config, pace func(context.Context) error) (*Result, error) {
	dirs, err := versionsIn(dir)
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread() // so that what cutting takes can be told
	defer runtime.UnlockOSThread()
	l, err := newLab(ctx, c)
	if err != nil {
		return nil, err
	}
	l.pace = pace
	if c.Sleep {
		l.pause, c.Pause = c.Pause, 0
	}
	r := &Result{Set: filepath.Base(filepath.Clean(dir)), Config: c.Name}
	for _, d := range dirs {
		a, err := l.store(d, c.Pause)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d, err)
		}
		r.Versions = append(r.Versions, a)
	}
	r.finish()
	return r, nil
}

// finish computes what follows from the versions.
func (r *Result) finish() {
	r.Sum = Account{}
	for i := range r.Versions {
		r.Sum.plus(&r.Versions[i])
	}
	r.Stored = r.Sum.Stored()
	r.Ratio = float64(r.Sum.Bytes) / float64(max(1, r.Stored))
	r.Overhead = float64(r.Sum.Index) / float64(max(1, r.Stored))
	r.Load = r.Sum.CPU / max(r.Sum.Seconds, 1e-9)
}

func (a *Account) plus(b *Account) {
	a.Files, a.Bytes = a.Files+b.Files, a.Bytes+b.Bytes
	a.Chunks, a.NewChunks, a.NewBytes = a.Chunks+b.Chunks, a.NewChunks+b.NewChunks, a.NewBytes+b.NewBytes
	a.Multichunks, a.Multichunk = a.Multichunks+b.Multichunks, a.Multichunk+b.Multichunk
	a.Index, a.Nodes = a.Index+b.Index, a.Nodes+b.Nodes
	a.Cutting, a.CPU, a.Seconds = a.Cutting+b.Cutting, a.CPU+b.CPU, a.Seconds+b.Seconds
}

// WithPause returns what the same configuration gives with a pause after each multichunk: the same bytes, later.
func (r *Result) WithPause(c Config, before time.Duration) *Result {
	p := *r
	p.Config, p.Versions = c.Name, nil
	for _, a := range r.Versions {
		a.Seconds += (c.Pause - before).Seconds() * float64(a.Multichunks)
		p.Versions = append(p.Versions, a)
	}
	p.finish()
	return &p
}

// PeakMemory returns the most memory that this process has had, in bytes.
func PeakMemory() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return int64(u.Maxrss) * maxrssUnit
}
