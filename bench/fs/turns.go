package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// side is one of two file systems that make each call in turns, so that whatever else the machine does meets both.
type side struct {
	dir    string
	file   *os.File // of random bytes
	log    *os.File // is appended to
	places *rand.Rand
	took   []time.Duration
}

// turns are the calls. do makes the i-th.
var turns = []struct {
	name string
	some bool // a tenth of the others, because it is slow
	do   func(s *side, mib, i int) error
}{
	{"write 4 KiB at random", false, func(s *side, mib, i int) error { return s.overwrite(mib) }},
	{"write 4 KiB at random and fsync", true, func(s *side, mib, i int) error { return errors.Join(s.overwrite(mib), s.file.Sync()) }},
	{"append 4 KiB and fsync", true, func(s *side, mib, i int) error {
		_, err := s.log.Write(block[:])
		return errors.Join(err, s.log.Sync())
	}},
	{"create 4 KiB", false, func(s *side, mib, i int) error { return os.WriteFile(s.name("f", i), block[:], 0o644) }},
	{"stat", false, func(s *side, mib, i int) error { return s.stat("f", i, nil) }},
	{"open and read", false, func(s *side, mib, i int) error { return readFile(s.name("f", i), len(block)) }},
	{"stat in vain", false, func(s *side, mib, i int) error { return s.stat("none", i, syscall.ENOENT) }},
	{"rename", false, func(s *side, mib, i int) error { return os.Rename(s.name("f", i), s.name("g", i)) }},
	{"unlink", false, func(s *side, mib, i int) error { return os.Remove(s.name("g", i)) }},
}

var block [4096]byte

func (s *side) name(kind string, i int) string { return filepath.Join(s.dir, fmt.Sprint(kind, i)) }

func (s *side) overwrite(mib int) error {
	_, err := s.file.WriteAt(block[:], s.places.Int64N(int64(mib)<<8)<<12)
	return err
}

func (s *side) stat(kind string, i int, want error) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(s.name(kind, i), &st); !errors.Is(err, want) {
		return fmt.Errorf("lstat = %v, want %v", err, want)
	}
	return nil
}

// measureTurns compares the mount with the loopback that copies, call by call.
func measureTurns(c *config, all []*subject, data *inputs) error {
	var sides []*side
	for _, s := range all {
		if s.name != "loopback-copy" && s.name != "mount" {
			continue
		}
		stop, err := s.start()
		if err != nil {
			return err
		}
		defer stop()
		one, err := newSide(s.dir, data)
		if err != nil {
			return err
		}
		defer one.file.Close()
		defer one.log.Close()
		sides = append(sides, one)
	}
	if len(sides) != 2 {
		return errors.New("-turns needs -mount, and the loopback")
	}
	fmt.Printf("%-34s %14s %8s\n", "loopback-copy / mount", "5th percentile", "median")
	for _, t := range turns {
		n := c.ops
		if t.some {
			n /= 10
		}
		if err := takeTurns(sides, n, func(s *side, i int) error { return t.do(s, c.mib, i) }); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		printTurns(t.name, sides)
	}
	return turnsOfReads(c, sides)
}

// turnsOfReads reads both files in order with the page cache dropped.
func turnsOfReads(c *config, sides []*side) error {
	b := &bench{config: c}
	if !b.dropCaches() {
		return nil
	}
	for _, s := range sides {
		if _, err := s.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	buf := make([]byte, 1<<20)
	err := takeTurns(sides, c.mib, func(s *side, _ int) error {
		_, err := io.ReadFull(s.file, buf)
		return err
	})
	if err == nil {
		printTurns("read 1 MiB, page cache dropped", sides)
	}
	return err
}

func newSide(dir string, data *inputs) (*side, error) {
	s := &side{dir: filepath.Join(dir, "turns"), places: rand.New(rand.NewPCG(1, 2))}
	err := os.Mkdir(s.dir, 0o755)
	if err == nil {
		err = copyFile(s.name("big", 0), data.big)
	}
	if err == nil {
		s.file, err = os.OpenFile(s.name("big", 0), os.O_RDWR, 0)
	}
	if err == nil {
		s.log, err = os.OpenFile(s.name("log", 0), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	}
	return s, err
}

// takeTurns has each side make n calls, the two taking turns in who is first.
func takeTurns(sides []*side, n int, do func(s *side, i int) error) error {
	for _, s := range sides {
		s.took = s.took[:0]
	}
	for i := range n {
		for k := range sides {
			s := sides[(i+k)%len(sides)]
			begun := time.Now()
			if err := do(s, i); err != nil {
				return err
			}
			s.took = append(s.took, time.Since(begun))
		}
	}
	return nil
}

func printTurns(name string, sides []*side) {
	ratio := func(share float64) float64 {
		return float64(quantile(sides[0].took, share)) / float64(quantile(sides[1].took, share))
	}
	fmt.Printf("%-34s %14.2f %8.2f\n", name, ratio(0.05), ratio(0.5))
}

// quantile returns the duration that a share of all are below.
func quantile(ds []time.Duration, share float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(ds))
	return max(sorted[int(share*float64(len(sorted)-1))], 1)
}
