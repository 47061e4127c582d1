package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// inputs are what all subjects are given, made once.
type inputs struct {
	big  string // file of random bytes
	tar  string // archive of a tree of files, or "" without tar
	tars int    // files in it
}

func defaultTree() string {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return filepath.Join(strings.TrimSpace(string(root)), "src", "cmd", "compile")
}

func prepare(c *config, dir string) (*inputs, error) {
	in := &inputs{big: filepath.Join(dir, "big")}
	f, err := os.Create(in.big)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seed := rand.NewChaCha8([32]byte{1})
	if _, err := io.CopyN(f, seed, int64(c.mib)<<20); err != nil {
		return nil, err
	}
	if !has("tar") || c.tree == "" {
		return in, nil
	}
	in.tar = filepath.Join(dir, "tree.tar")
	if out, err := exec.Command("tar", "-cf", in.tar, "-C", c.tree, ".").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pack %s: %w: %s", c.tree, err, out)
	}
	list, err := exec.Command("tar", "-tf", in.tar).Output()
	in.tars = strings.Count(string(list), "\n")
	return in, err
}

func has(tool string) bool {
	_, err := exec.LookPath(tool)
	return err == nil
}

// bench is one subject at work.
type bench struct {
	*inputs
	*config
	*subject
	*table
	root string // directory in the mount that everything lies in
}

var workloads = []struct {
	name string
	run  func(*bench) error
}{
	{"seq", (*bench).sequential},
	{"rand", (*bench).random},
	{"meta", (*bench).metadata},
	{"tree", (*bench).trees},
	{"git", (*bench).clone},
	{"sqlite", (*bench).transactions},
}

func workloadNames() (names []string) {
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

func (b *bench) runAll() error {
	b.root = filepath.Join(b.dir, "work")
	if err := os.Mkdir(b.root, 0o755); err != nil {
		return err
	}
	for _, w := range workloads {
		if b.only != "" && !slices.Contains(strings.Split(b.only, ","), w.name) {
			continue
		}
		if err := w.run(b); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	if mib := b.peakMemory(); mib > 0 {
		b.add(b.name, "peak memory", "MiB", mib)
	}
	return os.RemoveAll(b.root)
}

// note adds a value to the table.
func (b *bench) note(step, unit string, value float64) { b.add(b.name, step, unit, value) }

// rate runs fn and notes how many of unit, of which it does n, it does in a second.
func (b *bench) rate(step, unit string, n float64, fn func() error) error {
	begun := time.Now()
	if err := fn(); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	b.note(step, unit, n/time.Since(begun).Seconds())
	return nil
}

// seconds runs fn and notes how long it takes.
func (b *bench) seconds(step string, fn func() error) error {
	begun := time.Now()
	if err := fn(); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	b.note(step, "s", time.Since(begun).Seconds())
	return nil
}

// waitDrained returns when everything is on the remote.
func (b *bench) waitDrained() error {
	if b.drain == "" {
		return nil
	}
	cmd := exec.Command("sh", "-c", b.drain)
	cmd.Env = append(os.Environ(), "DIR="+b.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("drain: %w: %s", err, out)
	}
	return nil
}

// dropCaches empties the caches of the kernel; without the right to that, steps that need it are skipped.
func (b *bench) dropCaches() bool {
	return b.cold && os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0) == nil
}

// sequential writes, drains, reads and compares a big file.
func (b *bench) sequential() error {
	file, mb := filepath.Join(b.root, "big"), float64(b.mib)*1.048576
	begun := time.Now()
	if err := b.rate("write and fsync", "MB/s", mb, func() error { return copyFile(file, b.big) }); err != nil {
		return err
	}
	if b.drain != "" {
		if err := b.waitDrained(); err != nil {
			return err
		}
		b.note("write to the remote", "MB/s", mb/time.Since(begun).Seconds())
	}
	reading := func() error { return readFile(file, 1<<20) }
	if err := b.rate("read, just written", "MB/s", mb, reading); err != nil {
		return err
	}
	if b.dropCaches() {
		if err := b.rate("read, page cache dropped", "MB/s", mb, reading); err != nil {
			return err
		}
	}
	return sameContent(file, b.big)
}

// copyFile copies from to file in large blocks and syncs.
func copyFile(file, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(file)
	if err != nil {
		return err
	}
	// Only Read and Write: no copying inside the kernel.
	_, err = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 1<<20))
	return errors.Join(err, dst.Sync(), dst.Close())
}

func readFile(file string, block int) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, block))
	return err
}

func sameContent(a, b string) error {
	if out, err := exec.Command("cmp", a, b).CombinedOutput(); err != nil {
		return fmt.Errorf("compare: %w: %s", err, out)
	}
	return nil
}

// random reads and writes 4 KiB here and there in a big file.
func (b *bench) random() error {
	file := filepath.Join(b.root, "random")
	if err := copyFile(file, b.big); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	block, places := make([]byte, 4096), rand.New(rand.NewPCG(1, 2))
	each := func(n int, do func(off int64) error) func() error {
		return func() error {
			for range n {
				if err := do(places.Int64N(int64(b.mib)<<8) << 12); err != nil {
					return err
				}
			}
			return nil
		}
	}
	readAt := func(off int64) error { _, err := f.ReadAt(block, off); return err }
	writeAt := func(off int64) error { _, err := f.WriteAt(block, off); return err }
	if b.dropCaches() {
		if err := b.rate("random read 4 KiB", "/s", float64(b.ops), each(b.ops, readAt)); err != nil {
			return err
		}
	}
	if err := b.rate("random write 4 KiB", "/s", float64(b.ops), each(b.ops, writeAt)); err != nil {
		return err
	}
	synced := b.ops / 10
	return b.rate("random write 4 KiB and fsync", "/s", float64(synced), each(synced, func(off int64) error {
		return errors.Join(writeAt(off), f.Sync())
	}))
}
