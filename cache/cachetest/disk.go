package cachetest

import (
	"bytes"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/cache"
)

// A Disk is cache.Files in memory. It knows what has been synced, so that it can
// tell what might be left of it after a power cut: PowerCut.
//
// It keeps less than most file systems would. A file's bytes last only once the
// file has been synced, sector by sector and in any order before that. Its length
// may last without its bytes, which are then zeros. A name lasts only once its
// directory has been synced; before that each creation, renaming and removal may
// last without the others.
type Disk struct {
	mu       sync.Mutex // guards all below, and all files
	dirs     map[string]*dir
	capacity int64 // bytes of content; 0 is without end
	used     int64
}

type dir struct {
	now     map[string]*file // nil for a directory
	lasting map[string]*file
	changes []change // since the directory was synced
}

// change gives a name another file, or takes it away if gone is set. A renaming
// is one change of two names.
type change struct {
	name string
	file *file
	gone bool
	also *change // the other half of a renaming within a directory
}

type file struct {
	data    []byte
	lasting []byte
	writes  []write // since the file was synced
	mod     time.Time
	reserve int64 // allocated beyond the end of data
}

// write is a piece of data, or a truncation to off.
type write struct {
	off      int64
	data     []byte
	truncate bool
}

// NewDisk returns an empty disk that holds capacity bytes; 0 is without end.
func NewDisk(capacity int64) *Disk {
	return &Disk{dirs: map[string]*dir{".": newDir()}, capacity: capacity}
}

func newDir() *dir { return &dir{now: map[string]*file{}, lasting: map[string]*file{}} }

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// SetCapacity changes how many bytes the disk holds.
func (d *Disk) SetCapacity(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity = n
}

// find returns the directory of name and its last element. The caller holds mu.
func (d *Disk) find(op, name string) (*dir, string, error) {
	parent := d.dirs[path.Dir(name)]
	if parent == nil {
		return nil, "", pathError(op, name, fs.ErrNotExist)
	}
	return parent, path.Base(name), nil
}

// set changes what stands under a name.
func (p *dir) set(name string, f *file) {
	p.now[name] = f
	p.changes = append(p.changes, change{name: name, file: f})
}

// Create implements cache.Files.
func (d *Disk) Create(name string) (cache.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("create", name)
	if err != nil {
		return nil, err
	}
	f := p.now[base]
	if f == nil {
		f = &file{}
		p.set(base, f)
	} else {
		d.truncate(f, 0)
	}
	f.mod = time.Now()
	return &handle{d: d, f: f, name: name}, nil
}

// Open implements cache.Files.
func (d *Disk) Open(name string) (cache.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("open", name)
	if err != nil {
		return nil, err
	}
	f := p.now[base]
	if f == nil {
		return nil, pathError("open", name, fs.ErrNotExist)
	}
	return &handle{d: d, f: f, name: name}, nil
}

// Rename implements cache.Files. Both names must lie in one directory.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, old, err := d.find("rename", from)
	if err != nil {
		return err
	}
	if path.Dir(from) != path.Dir(to) {
		return pathError("rename", to, syscall.EXDEV)
	}
	f, name := p.now[old], path.Base(to)
	if f == nil {
		return pathError("rename", from, fs.ErrNotExist)
	}
	if over := p.now[name]; over != nil && over != f {
		d.used -= over.space()
	}
	delete(p.now, old)
	p.now[name] = f
	p.changes = append(p.changes, change{name: name, file: f, also: &change{name: old, gone: true}})
	return nil
}

// Remove implements cache.Files.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("remove", name)
	if err != nil {
		return err
	}
	f, ok := p.now[base]
	if !ok {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if f == nil {
		if sub := d.dirs[name]; sub != nil && len(sub.now) > 0 {
			return pathError("remove", name, syscall.ENOTEMPTY)
		}
		delete(d.dirs, name)
	} else {
		d.used -= f.space()
	}
	delete(p.now, base)
	p.changes = append(p.changes, change{name: base, gone: true})
	return nil
}

// Mkdir implements cache.Files.
func (d *Disk) Mkdir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("mkdir", name)
	if err != nil {
		return err
	}
	if d.dirs[name] == nil {
		d.dirs[name] = newDir()
		p.set(base, nil)
	}
	return nil
}

// List implements cache.Files.
func (d *Disk) List(name string) ([]cache.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.dirs[name]
	if p == nil {
		return nil, pathError("list", name, fs.ErrNotExist)
	}
	var list []cache.FileInfo
	for name, f := range p.now {
		info := cache.FileInfo{Name: name, Dir: f == nil}
		if f != nil {
			info.Size, info.ModTime = int64(len(f.data)), f.mod
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b cache.FileInfo) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return list, nil
}

// SyncDir implements cache.Files.
func (d *Disk) SyncDir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.dirs[name]
	if p == nil {
		return pathError("sync", name, fs.ErrNotExist)
	}
	p.changes = nil
	p.lasting = map[string]*file{}
	for name, f := range p.now {
		p.lasting[name] = f
	}
	return nil
}

// Read returns the content of a file.
func (d *Disk) Read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("read", name)
	if err != nil {
		return nil, err
	}
	if p.now[base] == nil {
		return nil, pathError("read", name, fs.ErrNotExist)
	}
	return bytes.Clone(p.now[base].data), nil
}

// Replace gives a file other content, which lasts: damage, for tests.
func (d *Disk) Replace(name string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("replace", name)
	if err != nil {
		return err
	}
	if old := p.now[base]; old != nil {
		d.used -= old.space()
	}
	f := &file{data: bytes.Clone(data), lasting: bytes.Clone(data), mod: time.Now()}
	d.used += f.space()
	p.now[base], p.lasting[base] = f, f
	return nil
}

// Spoil flips a bit in each byte of a file from off on, also for those who have it open.
func (d *Disk) Spoil(name string, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, base, err := d.find("spoil", name)
	if err != nil {
		return err
	}
	f := p.now[base]
	if f == nil {
		return pathError("spoil", name, fs.ErrNotExist)
	}
	for i := off; i < int64(len(f.data)); i++ {
		f.data[i] ^= 1
	}
	return nil
}

// Clone returns a copy of the disk as it is, all of it lasting.
func (d *Disk) Clone() *Disk { return d.after(func(n int) keep { return keepAll(n) }, nil) }

// PowerCut returns a disk as it may be found after the power was lost: of what
// was not synced some part is there, as rng decides. The disk itself goes on.
func (d *Disk) PowerCut(rng *rand.Rand) *Disk {
	return d.after(func(n int) keep { return choose(rng, n) }, rng)
}

// keep says which of a number of unsynced things last.
type keep []bool

func keepAll(n int) keep {
	k := make(keep, n)
	for i := range k {
		k[i] = true
	}
	return k
}

// choose keeps nothing, everything, a prefix, or any part.
func choose(rng *rand.Rand, n int) keep {
	k := keepAll(n)
	switch rng.IntN(4) {
	case 0:
		clear(k)
	case 1:
		clear(k[rng.IntN(n+1):])
	case 2:
		for i := range k {
			k[i] = rng.IntN(2) == 0
		}
	}
	return k
}

// after builds the disk of which pick has decided what lasts.
func (d *Disk) after(pick func(n int) keep, rng *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &Disk{dirs: map[string]*dir{}, capacity: d.capacity}
	files := map[*file]*file{}
	for _, name := range sortedKeys(d.dirs) {
		p := newDir()
		left := d.dirs[name].settled(pick)
		for _, base := range sortedKeys(left) {
			f := left[base]
			if f != nil && files[f] == nil {
				files[f] = f.settled(pick, rng)
				next.used += files[f].space()
			}
			p.now[base] = files[f] // nil stays nil
			p.lasting[base] = files[f]
		}
		next.dirs[name] = p
	}
	next.dropLost()
	return next
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// dropLost removes directories whose names have not lasted.
func (d *Disk) dropLost() {
	for _, name := range sortedKeys(d.dirs) {
		if name == "." {
			continue
		}
		parent := d.dirs[path.Dir(name)]
		if parent == nil {
			delete(d.dirs, name)
			continue
		}
		if f, ok := parent.now[path.Base(name)]; !ok || f != nil {
			delete(d.dirs, name)
		}
	}
}

func (p *dir) settled(pick func(int) keep) map[string]*file {
	left := map[string]*file{}
	for name, f := range p.lasting {
		left[name] = f
	}
	kept := pick(len(p.changes))
	for i, c := range p.changes {
		if kept[i] {
			c.apply(left)
		}
	}
	return left
}

func (c *change) apply(names map[string]*file) {
	if c.gone {
		delete(names, c.name)
	} else {
		names[c.name] = c.file
	}
	if c.also != nil {
		c.also.apply(names)
	}
}

const sector = 512

// settled returns the file as it is found after a power cut.
func (f *file) settled(pick func(int) keep, rng *rand.Rand) *file {
	data := bytes.Clone(f.lasting)
	if rng == nil {
		data = bytes.Clone(f.data)
	} else {
		data = f.replay(data, pick)
		if longer := len(f.data) - len(data); longer > 0 && rng.IntN(3) == 0 {
			data = append(data, make([]byte, rng.IntN(longer+1))...) // the length lasts, the bytes do not
		}
	}
	return &file{data: data, lasting: bytes.Clone(data), mod: f.mod}
}

// replay applies those sectors of the unsynced writes that last.
func (f *file) replay(data []byte, pick func(int) keep) []byte {
	var pieces []write
	for _, w := range f.writes {
		if w.truncate {
			pieces = append(pieces, w)
			continue
		}
		for off, b := w.off, w.data; len(b) > 0; {
			n := min(int64(len(b)), sector-off%sector)
			pieces = append(pieces, write{off: off, data: b[:n]})
			off, b = off+n, b[n:]
		}
	}
	kept := pick(len(pieces))
	for i, w := range pieces {
		if !kept[i] {
			continue
		}
		data = w.apply(data)
	}
	return data
}

func (w *write) apply(data []byte) []byte {
	if w.truncate {
		return resized(data, w.off)
	}
	if end := w.off + int64(len(w.data)); end > int64(len(data)) {
		data = resized(data, end)
	}
	copy(data[w.off:], w.data)
	return data
}

func resized(data []byte, n int64) []byte {
	if n <= int64(len(data)) {
		return data[:n]
	}
	return append(data, make([]byte, n-int64(len(data)))...)
}

// space is what a file takes of the disk.
func (f *file) space() int64 { return max(int64(len(f.data)), f.reserve) }

// truncate sets the length of f and gives back what was reserved. The caller holds mu.
func (d *Disk) truncate(f *file, n int64) {
	d.used -= f.space()
	f.data = resized(f.data, n)
	f.reserve = 0
	d.used += f.space()
	f.writes = append(f.writes, write{off: n, truncate: true})
}

// handle is an open file.
type handle struct {
	d      *Disk
	f      *file
	name   string
	closed bool
}

var _ cache.File = (*handle)(nil)

// check returns an error if h is closed. The caller holds mu.
func (h *handle) check(op string) error {
	if h.closed {
		return pathError(op, h.name, fs.ErrClosed)
	}
	return nil
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("read"); err != nil {
		return 0, err
	}
	if off >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(off int64, parts ...[]byte) error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("write"); err != nil {
		return err
	}
	data := bytes.Join(parts, nil)
	room := h.d.room(h.f)
	end := off + int64(len(data))
	if end > h.f.space() && end-h.f.space() > room {
		// What fits is written, as on a real disk.
		data = data[:max(0, h.f.space()+room-off)]
		h.write(off, data)
		return pathError("write", h.name, syscall.ENOSPC)
	}
	h.write(off, data)
	return nil
}

func (h *handle) write(off int64, data []byte) {
	w := write{off: off, data: data}
	h.d.used -= h.f.space()
	h.f.data = w.apply(h.f.data)
	h.d.used += h.f.space()
	h.f.writes = append(h.f.writes, w)
	h.f.mod = time.Now()
}

// room returns how many bytes f may grow by.
func (d *Disk) room(f *file) int64 {
	if d.capacity == 0 {
		return 1 << 62
	}
	return max(0, d.capacity-d.used)
}

func (h *handle) Sync() error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("sync"); err != nil {
		return err
	}
	for _, w := range h.f.writes {
		h.f.lasting = w.apply(h.f.lasting)
	}
	h.f.writes = nil
	return nil
}

// loseWrites lets a sync fail as kernels do: what could not be written is read
// back all the same, and is not written by the next sync either.
func (h *handle) loseWrites() {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.f.writes = nil
}

func (h *handle) Truncate(n int64) error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("truncate"); err != nil {
		return err
	}
	h.d.truncate(h.f, n)
	return nil
}

func (h *handle) Allocate(off, n int64) error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("allocate"); err != nil {
		return err
	}
	grow := off + n - h.f.space()
	if grow <= 0 {
		return nil
	}
	if grow > h.d.room(h.f) {
		return pathError("allocate", h.name, syscall.ENOSPC)
	}
	h.f.reserve = off + n
	h.d.used += grow
	return nil
}

func (h *handle) WriteOut(off, n int64) {}

func (h *handle) Size() (int64, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("stat"); err != nil {
		return 0, err
	}
	return int64(len(h.f.data)), nil
}

func (h *handle) Close() error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.check("close"); err != nil {
		return err
	}
	h.closed = true
	return nil
}
