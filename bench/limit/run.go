//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/experiment"
)

// A result is what a mount has used by when.
type result struct {
	points        []point
	written, read float64 // MB/s
}

type point struct{ at, used float64 } // seconds

const (
	every  = 50 * time.Millisecond
	window = 5.0 // seconds
)

// extremes returns the least and the most of any five seconds, in cores.
func (r *result) extremes() (least, most float64) {
	least = 1e9
	for _, p := range r.curve() {
		least, most = min(least, p.Y/100), max(most, p.Y/100)
	}
	return least, most
}

// curve returns what was used of a core, in percent, over the five seconds before each moment.
func (r *result) curve() (points []experiment.Point) {
	i := 0
	for _, p := range r.points {
		for i+1 < len(r.points) && p.at-r.points[i+1].at >= window {
			i++
		}
		if q := r.points[i]; p.at-q.at >= window {
			points = append(points, experiment.Point{X: p.at, Y: 100 * (p.used - q.used) / (p.at - q.at)})
		}
	}
	return points
}

func (r *result) mean() float64 {
	a, b := r.points[0], r.points[len(r.points)-1]
	return (b.used - a.used) / (b.at - a.at)
}

// measure mounts and writes for as long as it should.
func measure(c *config, data, chunker, limit string) (r *result, err error) {
	work, err := os.MkdirTemp(c.work, "bench-limit-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	m := &mount{c: c, dir: filepath.Join(work, "mount"), repo: filepath.Join(work, "repo")}
	m.env = append(os.Environ(), "DEDUPFS_PASSWORD=bench", "DEDUPFS_CACHE_DIR="+filepath.Join(work, "cache"))
	if err := errors.Join(os.Mkdir(m.dir, 0o700), os.Mkdir(m.repo, 0o700)); err != nil {
		return nil, err
	}
	args := []string{"init", m.repo, "--compression", c.compression, "--kdf-memory", "8M", "-q"}
	if chunker != "-" {
		args = append(args, "--chunker", chunker)
	}
	if err := m.run(args...); err != nil {
		return nil, err
	}
	if err := m.start(limit); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	return m.watch(data)
}

// A mount is a process that mounts.
type mount struct {
	c         *config
	dir, repo string
	env       []string
	cmd       *exec.Cmd
}

func (m *mount) run(args ...string) error {
	cmd := exec.Command(m.c.dedupfs, args...)
	cmd.Env = m.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return nil
}

// start starts the process and returns when the mount is there.
func (m *mount) start(limit string) error {
	m.cmd = exec.Command(m.c.dedupfs, "mount", m.repo, m.dir, "-q", "--cpu-limit", limit)
	m.cmd.Env, m.cmd.Stderr = m.env, os.Stderr
	var before, now unix.Stat_t
	if err := errors.Join(unix.Stat(m.dir, &before), m.cmd.Start()); err != nil {
		return err
	}
	for range 600 {
		if unix.Stat(m.dir, &now) == nil && now.Dev != before.Dev {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(errors.New("it does not mount"), m.cmd.Process.Kill(), m.cmd.Wait())
}

// stop ends the process without waiting until all is stored. The second signal stops it at once.
func (m *mount) stop() error {
	ended := make(chan struct{})
	go func() {
		m.cmd.Wait()
		close(ended)
	}()
	for range 100 {
		m.cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
	err := m.cmd.Process.Kill()
	<-ended
	return errors.Join(errors.New("the mount does not end"), err, exec.Command("umount", "-l", m.dir).Run())
}

// used returns the processor time of a process, in seconds.
func used(p *os.Process) (float64, error) {
	var t unix.Timespec
	clock := int32(^p.Pid<<3 | 2) // clock_getcpuclockid(3)
	err := unix.ClockGettime(clock, &t)
	return float64(t.Nano()) / 1e9, err
}

// watch writes for as long as it should, and notes what is used.
func (m *mount) watch(data string) (*result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.c.each)
	defer cancel()
	r := &result{}
	w := &worker{ctx: ctx, dir: m.dir}
	var all sync.WaitGroup
	var err, rerr error
	all.Go(func() { err = w.write(data) })
	if m.c.read {
		all.Go(func() { rerr = w.reread() })
	}
	uerr := r.sample(ctx, m.cmd.Process)
	cancel()
	all.Wait()
	r.written, r.read = float64(w.written)/1e6/m.c.each.Seconds(), float64(w.read)/1e6/m.c.each.Seconds()
	return r, errors.Join(err, rerr, uerr)
}

// sample notes what a process uses until ctx ends.
func (r *result) sample(ctx context.Context, p *os.Process) error {
	for start := time.Now(); ctx.Err() == nil; time.Sleep(every) {
		used, err := used(p)
		if err != nil {
			return err
		}
		r.points = append(r.points, point{time.Since(start).Seconds(), used})
	}
	return nil
}

// A worker writes and reads.
type worker struct {
	ctx           context.Context
	dir           string
	written, read int64
}

// write writes what data says until the time is up.
func (w *worker) write(data string) error {
	rng := rand.NewChaCha8([32]byte{1})
	switch data {
	case "random", "text":
		return w.writeMade(data == "text", rng)
	}
	for round := 0; w.ctx.Err() == nil; round++ {
		err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
			if err != nil || w.ctx.Err() != nil {
				return errors.Join(err, w.ctx.Err())
			}
			if !d.Type().IsRegular() {
				return nil
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for at := 0; round > 0 && at < len(b); at += 4096 { // so that it is stored anew
				b[at] ^= byte(round)
			}
			return w.put(fmt.Sprint(round, strings.ReplaceAll(path, "/", "_")), b)
		})
		if err != nil && w.ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (w *worker) writeMade(text bool, rng *rand.ChaCha8) error {
	var words [1000]string
	for i := range words {
		words[i] = fmt.Sprintf("%x ", rng.Uint64()>>(16+rng.Uint64()%40))
	}
	block := make([]byte, 0, 1<<20)
	for i := 0; w.ctx.Err() == nil; i++ {
		if block = block[:cap(block)]; text {
			for block = block[:0]; len(block) < cap(block)-32; {
				block = append(block, words[rng.Uint64()%uint64(len(words))]...)
			}
		} else {
			rng.Read(block)
		}
		if err := w.put(fmt.Sprint("made", i), block); err != nil {
			return err
		}
	}
	return nil
}

// put writes a file in blocks. What is slow is given up when the time is up.
func (w *worker) put(name string, b []byte) error {
	f, err := os.Create(filepath.Join(w.dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	for in := bytes.NewReader(b); in.Len() > 0 && w.ctx.Err() == nil; {
		var block [128 << 10]byte
		n, _ := in.Read(block[:])
		if _, err := f.Write(block[:n]); err != nil {
			return err
		}
		w.written += int64(n)
	}
	return nil
}

// reread reads one file over and over, past the cache of the kernel.
func (w *worker) reread() error {
	if err := w.put("read me", make([]byte, 4<<20)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(w.dir, "read me"), os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 128<<10)
	for off := int64(0); w.ctx.Err() == nil; off = (off + int64(len(b))) % (4 << 20) {
		n, err := f.ReadAt(b, off)
		if err != nil {
			return err
		}
		w.read += int64(n)
	}
	return nil
}
