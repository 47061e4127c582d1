package cache

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// disk keeps multichunks as they lie on the remote, sealed. They are not synced
// and not trusted: whatever is wrong with a file is found when it is opened, and
// the file goes.
type disk struct {
	fsys  Files
	space *space
	now   func() time.Time

	mu     sync.Mutex // guards what follows
	files  map[store.Name]*diskFile
	roots  []uint64            // of Pins
	pinned map[store.Name]bool // are not evicted
}

type diskFile struct {
	size int64
	used time.Time
}

const multichunkDir = "multichunks"

func multichunkName(n store.Name) string {
	s := n.String()
	return multichunkDir + "/" + s[:2] + "/" + s
}

// openDisk finds out what is there.
func openDisk(fsys Files, sp *space, now func() time.Time) (*disk, error) {
	d := &disk{fsys: fsys, space: sp, now: now, files: make(map[store.Name]*diskFile)}
	dirs, err := fsys.List(multichunkDir)
	if err != nil {
		return nil, fmt.Errorf("open multichunk cache: %w", err)
	}
	for _, dir := range dirs {
		if !dir.Dir {
			continue
		}
		files, err := fsys.List(multichunkDir + "/" + dir.Name)
		if err != nil {
			return nil, fmt.Errorf("open multichunk cache: %w", err)
		}
		for _, f := range files {
			d.found(dir.Name, f)
		}
	}
	return d, nil
}

// found accounts for a file; what is not a multichunk is removed if it is ours.
func (d *disk) found(dir string, f FileInfo) {
	path := multichunkDir + "/" + dir + "/" + f.Name
	n, ok := parseName(f.Name)
	switch {
	case ok && multichunkName(n) == path:
		d.files[n] = &diskFile{size: f.Size, used: f.ModTime}
		d.space.force(f.Size)
	case strings.HasSuffix(f.Name, tmpSuffix):
		d.fsys.Remove(path)
	}
}

func parseName(s string) (n store.Name, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(n) {
		return n, false
	}
	n = store.Name(b)
	return n, n.String() == s
}

// open returns the file of a multichunk, or nil if it is not there.
func (d *disk) open(n store.Name) (File, int64) {
	d.mu.Lock()
	f := d.files[n]
	if f != nil {
		f.used = d.now()
	}
	d.mu.Unlock()
	if f == nil {
		return nil, 0
	}
	file, err := d.fsys.Open(multichunkName(n))
	if errors.Is(err, fs.ErrNotExist) {
		d.drop(n)
	}
	if err != nil {
		return nil, 0 // it will come from the remote
	}
	size, err := file.Size()
	if err != nil {
		file.Close()
		return nil, 0
	}
	return file, size
}

func (d *disk) has(n store.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[n] != nil
}

// put keeps a multichunk if there is space. That there is none, or that the disk
// does not take it, is no error: it can be fetched again.
func (d *disk) put(n store.Name, wire []byte) {
	size := int64(len(wire))
	if d.has(n) || !d.space.take(size, forData) {
		return
	}
	if err := d.write(n, wire); err != nil && !(isNoSpace(err) && d.space.evict(size) && d.write(n, wire) == nil) {
		d.space.give(size)
		return
	}
	d.added(n, size)
}

// added accounts for a multichunk whose space has been taken.
func (d *disk) added(n store.Name, size int64) {
	d.mu.Lock()
	old := d.files[n]
	d.files[n] = &diskFile{size: size, used: d.now()}
	d.mu.Unlock()
	if old != nil {
		d.space.give(old.size) // somebody else was as quick
	}
}

// fetch has fill write a multichunk, of about size bytes, and reports whether it
// is there now and how long it is.
func (d *disk) fetch(n store.Name, size int64, fill func(*os.File) (int64, error)) (int64, bool) {
	if !d.space.take(size, forData) {
		return 0, false
	}
	var got int64
	err := d.create(n, ".fetch"+tmpSuffix, func(f File) (err error) {
		file, ok := f.(osFile)
		if !ok {
			return errors.ErrUnsupported
		}
		got, err = fill(file.File)
		return err
	})
	if err != nil {
		d.space.give(size)
		return 0, false
	}
	d.space.give(size)
	d.space.force(got)
	d.added(n, got)
	return got, true
}

func (d *disk) write(n store.Name, wire []byte) error {
	return d.create(n, tmpSuffix, func(f File) error { return f.WriteAt(0, wire) })
}

// create makes the file of a multichunk with what fill writes, under a name with
// the given end at first: put and fetch may bring the same one.
func (d *disk) create(n store.Name, end string, fill func(File) error) error {
	name := multichunkName(n)
	if err := d.fsys.Mkdir(dirOf(name)); err != nil {
		return err
	}
	f, err := d.fsys.Create(name + end)
	if err != nil {
		return err
	}
	err = errors.Join(fill(f), f.Close())
	if err == nil {
		err = d.fsys.Rename(name+end, name)
	}
	if err != nil {
		d.fsys.Remove(name + end)
	}
	return err
}

// drop removes a multichunk and returns the bytes that this has freed.
func (d *disk) drop(n store.Name) int64 {
	d.mu.Lock()
	f := d.files[n]
	delete(d.files, n)
	d.mu.Unlock()
	if f == nil {
		return 0
	}
	d.fsys.Remove(multichunkName(n)) // if it stays it is found by the next Open
	d.space.give(f.size)
	return f.size
}

// idle returns when the multichunk that has been unused for longest was used, and how to remove it.
func (d *disk) idle() (at time.Time, remove func() (int64, error), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var oldest store.Name
	for n, f := range d.files {
		if !d.pinned[n] && (!ok || f.used.Before(at)) {
			oldest, at, ok = n, f.used, true
		}
	}
	return at, func() (int64, error) { return d.drop(oldest), nil }, ok
}

// sealedSource is a sealed multichunk that can be read here.
type sealedSource struct {
	io.ReaderAt
	size  int64
	close func()
}

func bytesSource(wire []byte) *sealedSource {
	return &sealedSource{ReaderAt: bytes.NewReader(wire), size: int64(len(wire)), close: func() {}}
}

func fileSource(f File, size int64) *sealedSource {
	return &sealedSource{ReaderAt: f, size: size, close: func() { f.Close() }}
}
