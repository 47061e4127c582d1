package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/hash"
	"github.com/rclone/rclone/fs/object"
)

// tempSuffix ends the names of objects that are still being written.
const tempSuffix = ".partial"

// IsTemp reports whether name is that of an object that some client is, or was,
// writing. One that is old may be deleted.
func IsTemp(name string) bool { return strings.HasSuffix(name, tempSuffix) }

// tempName returns a new name beside name.
func tempName(name string) string {
	var b [8]byte
	rand.Read(b[:])
	return name + "." + hex.EncodeToString(b[:]) + tempSuffix
}

// backend is what Remote builds on: one attempt per call, errors as they are.
type backend interface {
	Storage
	// holds reports whether name stands there with the size of data, and its
	// hash where that is cheap. If it cannot tell, it does not.
	holds(ctx context.Context, name string, data []byte) bool
	// create makes the root.
	create(ctx context.Context) error
	hashName() string
	space(ctx context.Context) (Space, error)
}

// rcloneStorage is a backend on any rclone Fs.
type rcloneStorage struct {
	f        fs.Fs
	up, down *limit
	corrupt  func() // called when what was stored is not what was put

	hash    hash.Type // to verify uploads with; hash.None if there is no cheap one
	rename  bool      // uploads are visible while they run: write beside, then rename
	names   serial
	handles handles
}

func newRcloneStorage(f fs.Fs, up, down *limit, corrupt func()) *rcloneStorage {
	features := f.Features()
	return &rcloneStorage{
		f: f, up: up, down: down, corrupt: corrupt,
		hash:   cheapHash(f),
		rename: features.PartialUploads && features.Move != nil,
	}
}

// fastHashes are the hashes that storages compute, fastest first.
var fastHashes = []hash.Type{hash.XXH3, hash.XXH128, hash.CRC32, hash.BLAKE3, hash.SHA1, hash.MD5, hash.SHA256}

// cheapHash returns the fastest hash that f tells without work of its own.
func cheapHash(f fs.Fs) hash.Type {
	if f.Features().SlowHash {
		return hash.None
	}
	for _, t := range fastHashes {
		if f.Hashes().Contains(t) {
			return t
		}
	}
	return f.Hashes().GetOne()
}

func (s *rcloneStorage) Put(ctx context.Context, name string, data []byte) error {
	if !s.rename {
		return s.upload(ctx, name, name, data)
	}
	// Some storages rename by deleting what stands under the new name, so what
	// is already there must be let be.
	leave, err := s.names.enter(ctx, name)
	if err != nil {
		return err
	}
	defer leave()
	if s.holds(ctx, name, data) {
		return nil
	}
	return s.upload(ctx, name, tempName(name), data)
}

// upload puts data under target, and then renames it to name if that differs.
func (s *rcloneStorage) upload(ctx context.Context, name, target string, data []byte) error {
	in := &upload{ctx: ctx, lim: s.up, data: data}
	defer in.stop()
	src := &source{name: target, data: data, now: time.Now()}
	obj, err := s.f.Put(ctx, in, src)
	if err == nil {
		err = s.verify(ctx, obj, src)
	}
	if err == nil && target != name {
		obj, err = s.f.Features().Move(ctx, obj, name)
	}
	if err != nil {
		if target != name {
			s.discard(ctx, target)
		}
		return err
	}
	s.handles.put(name, obj)
	return nil
}

// verify compares what the storage says of obj with what was sent.
func (s *rcloneStorage) verify(ctx context.Context, obj fs.Object, src *source) error {
	if size := obj.Size(); size >= 0 && size != src.Size() {
		s.corrupt()
		return fmt.Errorf("stored %d bytes of %d", size, src.Size())
	}
	if s.hash == hash.None {
		return nil
	}
	got, err := obj.Hash(ctx, s.hash)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	want, err := src.Hash(ctx, s.hash)
	if err != nil {
		return err
	}
	if got != "" && !strings.EqualFold(got, want) {
		s.corrupt()
		return fmt.Errorf("stored with %v %s, want %s", s.hash, got, want)
	}
	return nil
}

// discard removes what a broken upload has left, if it can.
func (s *rcloneStorage) discard(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if obj, err := s.f.NewObject(ctx, name); err == nil {
		_ = obj.Remove(ctx) // it is only garbage; see IsTemp
	}
}

func (s *rcloneStorage) holds(ctx context.Context, name string, data []byte) bool {
	obj, err := s.f.NewObject(ctx, name)
	return err == nil && obj.Size() == int64(len(data)) && s.verify(ctx, obj, &source{name: name, data: data}) == nil
}

func (s *rcloneStorage) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	obj, known := s.handles.get(name)
	if !known || n < 0 {
		var err error
		if obj, err = s.f.NewObject(ctx, name); err != nil {
			return nil, err
		}
	}
	data, err := s.read(ctx, obj, off, n)
	if err == nil {
		s.handles.put(name, obj)
		return data, nil
	}
	// What was known of the object may be outdated: look again.
	s.handles.drop(name)
	if known && n >= 0 && ctx.Err() == nil {
		return s.Get(ctx, name, off, n)
	}
	return nil, err
}

// read reads n bytes of obj from off, or up to its end if n < 0.
func (s *rcloneStorage) read(ctx context.Context, obj fs.Object, off, n int64) ([]byte, error) {
	size := obj.Size()
	if size >= 0 && off+max(n, 0) > size {
		return nil, short(off, n, size)
	}
	if n < 0 && size >= 0 {
		n = size - off
	}
	if n == 0 {
		return []byte{}, nil
	}
	in, err := obj.Open(ctx, rangeOf(off, n, size)...)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if n < 0 {
		return readAll(ctx, in, s.down)
	}
	data := make([]byte, n)
	got, err := readFull(ctx, in, data, s.down)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("got %d bytes of %d: %w", got, n, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return nil, err
	}
	// More bytes than were asked for mean that the range was not respected, and
	// these may be the wrong ones.
	if extra, _ := in.Read(make([]byte, 1)); extra > 0 {
		return nil, fmt.Errorf("got more than the %d bytes from %d", n, off)
	}
	return data, nil
}

// rangeOf returns the options to open an object of size with, none if all of it
// is wanted.
func rangeOf(off, n, size int64) []fs.OpenOption {
	switch {
	case off == 0 && (n < 0 || n == size):
		return nil
	case n < 0:
		return []fs.OpenOption{&fs.RangeOption{Start: off, End: -1}}
	default:
		return []fs.OpenOption{&fs.RangeOption{Start: off, End: off + n - 1}}
	}
}

func readAll(ctx context.Context, in io.Reader, lim *limit) ([]byte, error) {
	var out bytes.Buffer
	piece := make([]byte, minBurst)
	for {
		n, err := lim.next(ctx, len(piece))
		if err != nil {
			return nil, err
		}
		n, err = in.Read(piece[:n])
		out.Write(piece[:n])
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *rcloneStorage) List(ctx context.Context, dir string, fn func(Entry) error) error {
	err := s.list(ctx, dir, fn)
	switch {
	case !errors.Is(err, fs.ErrorDirNotFound):
		return err
	case dir == "":
		return ErrRootGone
	}
	// A directory that is missing is empty, if its root is there.
	err = s.list(ctx, "", func(Entry) error { return nil })
	if errors.Is(err, fs.ErrorDirNotFound) {
		return ErrRootGone
	}
	return err
}

// list lists page by page where the backend can.
func (s *rcloneStorage) list(ctx context.Context, dir string, fn func(Entry) error) error {
	page := func(entries fs.DirEntries) error {
		for _, e := range entries {
			if err := fn(entryOf(e)); err != nil {
				return err
			}
		}
		return nil
	}
	if listP := s.f.Features().ListP; listP != nil {
		return listP(ctx, dir, page)
	}
	entries, err := s.f.List(ctx, dir)
	if err != nil {
		return err
	}
	return page(entries)
}

func entryOf(e fs.DirEntry) Entry {
	if _, dir := e.(fs.Directory); dir {
		return Entry{Name: path.Base(e.Remote()), Size: -1, Dir: true}
	}
	return Entry{Name: path.Base(e.Remote()), Size: e.Size()}
}

func (s *rcloneStorage) Delete(ctx context.Context, name string) error {
	s.handles.drop(name)
	obj, err := s.f.NewObject(ctx, name)
	if err == nil {
		err = obj.Remove(ctx)
	}
	if err != nil && kindOf(err) != ErrNotExist {
		return err
	}
	return nil
}

// RemoveDir implements DirRemover. It lists the directory, for not every backend refuses to remove one that holds something.
func (s *rcloneStorage) RemoveDir(ctx context.Context, name string) error {
	empty := true
	err := s.list(ctx, name, func(Entry) error { empty = false; return nil })
	if err == nil && empty {
		err = s.f.Rmdir(ctx, name)
	}
	if err != nil && (kindOf(err) == ErrNotExist || errors.Is(err, fs.ErrorDirectoryNotEmpty)) {
		return nil
	}
	return err
}

func (s *rcloneStorage) create(ctx context.Context) error { return s.f.Mkdir(ctx, "") }

func (s *rcloneStorage) hashName() string {
	if s.hash == hash.None {
		return ""
	}
	return s.hash.String()
}

// source describes an upload to rclone, which asks for the hashes it needs.
type source struct {
	name string
	data []byte
	now  time.Time
}

var _ fs.ObjectInfo = (*source)(nil)

func (s *source) Fs() fs.Info                       { return object.MemoryFs }
func (s *source) String() string                    { return s.name }
func (s *source) Remote() string                    { return s.name }
func (s *source) ModTime(context.Context) time.Time { return s.now }
func (s *source) Size() int64                       { return int64(len(s.data)) }
func (s *source) Storable() bool                    { return true }

func (s *source) Hash(_ context.Context, t hash.Type) (string, error) {
	h, err := hash.NewMultiHasherTypes(hash.NewHashSet(t))
	if err != nil {
		return "", err
	}
	h.Write(s.data)
	return h.SumString(t, false)
}

// A serial lets one caller at a time work on a name.
type serial struct {
	mu   sync.Mutex // guards busy
	busy map[string]chan struct{}
}

// enter waits until nobody works on name. The caller has done so when it calls
// leave.
func (s *serial) enter(ctx context.Context, name string) (leave func(), err error) {
	for {
		s.mu.Lock()
		other, taken := s.busy[name]
		if !taken {
			break // with the lock held
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer s.mu.Unlock()
	if s.busy == nil {
		s.busy = make(map[string]chan struct{})
	}
	done := make(chan struct{})
	s.busy[name] = done
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, name)
		close(done)
	}, nil
}

// maxHandles bounds handles, at well under 1 KiB each.
const maxHandles = 1024

// handles remembers objects that were read or written of late, so that reading
// another range of one need not ask for its size again.
type handles struct {
	mu sync.Mutex // guards m
	m  map[string]fs.Object
}

func (h *handles) get(name string) (fs.Object, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	obj, ok := h.m[name]
	return obj, ok
}

func (h *handles) put(name string, obj fs.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = make(map[string]fs.Object)
	}
	for old := range h.m {
		if len(h.m) < maxHandles {
			break
		}
		delete(h.m, old) // any will do
	}
	h.m[name] = obj
}

func (h *handles) drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.m, name)
}
