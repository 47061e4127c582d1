package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// metadata makes many small files and does to each what programs do, in directories of a thousand.
func (b *bench) metadata() error {
	top := filepath.Join(b.root, "meta")
	name := func(kind string, i int) string { return filepath.Join(top, fmt.Sprint(i/1000), fmt.Sprint(kind, i)) }
	for i := 0; i < b.files; i += 1000 {
		if err := os.MkdirAll(filepath.Dir(name("", i)), 0o755); err != nil {
			return err
		}
	}
	content := make([]byte, 4096)
	var st syscall.Stat_t
	for _, step := range []struct {
		name string
		do   func(i int) error
	}{
		{"create 4 KiB", func(i int) error { return os.WriteFile(name("f", i), content, 0o644) }},
		{"stat", func(i int) error { return syscall.Lstat(name("f", i), &st) }},
		{"open and read", func(i int) error { return readFile(name("f", i), 4096) }},
		{"stat in vain", func(i int) error {
			if err := syscall.Lstat(name("none", i), &st); !errors.Is(err, syscall.ENOENT) {
				return fmt.Errorf("lstat of no file = %v", err)
			}
			return nil
		}},
		{"list and stat", func(i int) error { return b.listOnce(name("", i), i) }},
		{"rename", func(i int) error { return os.Rename(name("f", i), name("g", i)) }},
		{"unlink", func(i int) error { return os.Remove(name("g", i)) }},
	} {
		err := b.rate(step.name, "/s", float64(b.files), func() error {
			for i := range b.files {
				if err := step.do(i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return os.RemoveAll(top)
}

// listOnce lists the directory of file i, with attributes, when i is its first.
func (b *bench) listOnce(file string, i int) error {
	if i%1000 != 0 {
		return nil
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		return err
	}
	if want := min(1000, b.files-i); len(entries) != want {
		return fmt.Errorf("%d entries listed, %d are there", len(entries), want)
	}
	for _, e := range entries {
		if _, err := e.Info(); err != nil {
			return err
		}
	}
	return nil
}
