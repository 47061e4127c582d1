package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A result is what one program has needed for one data set.
type result struct {
	Set     string  `json:"set,omitempty"`
	Program string  `json:"program,omitempty"`
	Plain   int64   `json:"plain_bytes,omitempty"` // of all versions together
	Remote  []int64 `json:"remote_bytes"`          // after each version, of all files on the remote
	CPU     float64 `json:"cpu_seconds,omitempty"` // to store all versions
	Memory  int64   `json:"peak_memory,omitempty"` // bytes, the most of any process that stored
	Restore float64 `json:"restore_seconds,omitempty"`
	Parts   *parts  `json:"parts,omitempty"`
}

// last returns the bytes on the remote after the last version.
func (r *result) last() int64 { return r.Remote[len(r.Remote)-1] }

// A program keeps versions of a directory in a repository.
type program interface {
	name() string
	// store stores all versions and notes what is on the remote after each.
	store(p *place, versions []string, r *result) error
	// restore writes the last version below dir and returns where it lies, or "" if it cannot be done.
	restore(p *place, dir string) (string, error)
}

// programs returns those that are measured.
func programs(c *config) []program {
	all := []program{dedupfs{c}}
	if !c.peers {
		return all
	}
	for _, p := range []program{restic{}, borg{}} {
		if _, err := exec.LookPath(p.name()); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// measure lets p store all versions of a data set and restore the last.
func measure(c *config, p program, set string) (*result, error) {
	dirs, err := versions(filepath.Join(c.data, set))
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(c.work, "bench-store-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	r := &result{Set: set, Program: p.name()}
	for _, d := range dirs {
		n, err := size(d)
		if err != nil {
			return nil, err
		}
		r.Plain += n
	}
	at := &place{dir: work}
	if err := p.store(at, dirs, r); err != nil {
		return nil, err
	}
	r.CPU, r.Memory = at.cpu.Seconds(), at.memory
	begun := time.Now()
	restored, err := p.restore(at, filepath.Join(work, "restored"))
	if err != nil || restored == "" {
		return r, err
	}
	r.Restore = time.Since(begun).Seconds()
	return r, compare(dirs[len(dirs)-1], restored)
}

// A place is the directory that a program works in, and what its processes have taken there.
type place struct {
	dir    string
	env    []string
	cpu    time.Duration
	memory int64 // bytes, the most of any process
}

// remote is where the repository lies.
func (p *place) remote() string { return filepath.Join(p.dir, "remote") }

// run runs a command in dir and adds what it takes. It returns its standard output.
func (p *place) run(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), p.env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	p.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	p.memory = max(p.memory, peakMemory(cmd.ProcessState.SysUsage().(*syscall.Rusage)))
	return []byte(stdout.String()), nil
}

// size returns the bytes in all files below dir.
func size(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// compare returns an error unless everything below a is below b, with the same content, mode and time.
func compare(a, b string) error {
	return filepath.WalkDir(a, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == a {
			return err
		}
		rel, err := filepath.Rel(a, path)
		if err != nil {
			return err
		}
		return compareEntry(path, filepath.Join(b, rel))
	})
}

func compareEntry(a, b string) error {
	before, err := os.Lstat(a)
	if err != nil {
		return err
	}
	after, err := os.Lstat(b)
	if err != nil {
		return err
	}
	if before.Mode() != after.Mode() {
		return fmt.Errorf("%s has mode %v, restored was %v", a, before.Mode(), after.Mode())
	}
	switch {
	case before.Mode()&os.ModeSymlink != 0:
		x, _ := os.Readlink(a)
		if y, _ := os.Readlink(b); x != y {
			return fmt.Errorf("%s links to %q, restored was %q", a, x, y)
		}
	case before.Mode().IsRegular():
		if !before.ModTime().Equal(after.ModTime()) {
			return fmt.Errorf("%s has time %v, restored was %v", a, before.ModTime(), after.ModTime())
		}
		return compareContent(a, b)
	}
	return nil
}

// compareContent compares two files piece by piece, for this process must stay small: see place.run.
func compareContent(a, b string) error {
	fa, err := os.Open(a)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return err
	}
	defer fb.Close()
	pa, pb := make([]byte, blockSize), make([]byte, blockSize)
	for {
		na, err := io.ReadFull(fa, pa)
		nb, _ := io.ReadFull(fb, pb)
		if string(pa[:na]) != string(pb[:nb]) {
			return fmt.Errorf("%s was not restored as it was", a)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
