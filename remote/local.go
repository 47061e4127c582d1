package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
)

// A dir is a backend in a local directory. rclone has one too, and as fast: this
// one never makes the root again when it is gone, shows no object before all of
// it is written, and can make what it has written durable.
//
// The root is opened anew for each call, so that a disk which goes away and
// comes back is noticed, and can be unmounted in between.
type dir struct {
	path     string // absolute
	up, down *limit

	mu    sync.Mutex // guards all below
	root  os.FileInfo
	dirty map[string]bool // names put since the last Sync
}

var _ Syncer = (*dir)(nil)

// openDir returns the directory at path. If it is not there, create makes it.
func openDir(path string, create bool, up, down *limit) (*dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &dir{path: path, up: up, down: down, dirty: make(map[string]bool)}
	if create {
		if err := d.create(context.Background()); err != nil {
			return nil, err
		}
	}
	root, err := d.open()
	if err != nil {
		return nil, err
	}
	return d, root.Close()
}

func (d *dir) create(context.Context) error {
	if err := os.MkdirAll(d.path, 0o777); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(d.path))
	if err != nil {
		return nil // what we may not read we cannot sync
	}
	defer parent.Close()
	return syncDir(parent)
}

// open returns the root, or ErrRootGone.
func (d *dir) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", d.path, ErrRootGone)
	}
	if err != nil {
		return nil, err
	}
	if err := d.recognise(root); err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// recognise notices that the root is now the bare mount point of a disk that is
// away: another directory than before, and an empty one.
func (d *dir) recognise(root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.root != nil && !os.SameFile(d.root, info) {
		empty, err := isEmpty(root)
		if err != nil {
			return err
		}
		if empty {
			return fmt.Errorf("%s is another directory now, and empty: %w", d.path, ErrRootGone)
		}
	}
	d.root = info
	return nil
}

func isEmpty(root *os.Root) (bool, error) {
	f, err := root.Open(".")
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

func (d *dir) Put(ctx context.Context, name string, data []byte) (err error) {
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	temp := tempName(name)
	defer func() {
		if err != nil {
			_ = root.Remove(temp) // only garbage; see IsTemp
		}
	}()
	if err := d.write(ctx, root, temp, data); err != nil {
		return err
	}
	if err := root.Rename(temp, name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirty[name] = true
	return nil
}

// write makes a file of data, and the directories above it.
func (d *dir) write(ctx context.Context, root *os.Root, name string, data []byte) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := root.OpenFile(name, flags, 0o666)
	if errors.Is(err, fs.ErrNotExist) {
		if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
			return err
		}
		f, err = root.OpenFile(name, flags, 0o666)
	}
	if err != nil {
		return err
	}
	for len(data) > 0 && err == nil {
		var n int
		if n, err = d.up.next(ctx, len(data)); err == nil {
			n, err = f.Write(data[:n])
			data = data[n:]
		}
	}
	return errors.Join(err, f.Close())
}

func (d *dir) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	root, err := d.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, ErrNotExist
	}
	if off+max(n, 0) > info.Size() {
		return nil, short(off, n, info.Size())
	}
	if n < 0 {
		n = info.Size() - off
	}
	data := make([]byte, n)
	if _, err := readFull(ctx, io.NewSectionReader(f, off, n), data, d.down); err != nil {
		return nil, fmt.Errorf("%d bytes from %d: %w", n, off, err)
	}
	return data, nil
}

func (d *dir) List(ctx context.Context, name string, fn func(Entry) error) error {
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	if name == "" {
		name = "."
	}
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(1024)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := listPage(entries, fn); err != nil {
			return err
		}
	}
}

// listPage calls fn for the files and directories among entries. One that was
// deleted in the meantime is left out.
func listPage(entries []os.DirEntry, fn func(Entry) error) error {
	for _, e := range entries {
		entry := Entry{Name: e.Name(), Size: -1, Dir: e.IsDir()}
		if !e.IsDir() {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			entry.Size = info.Size()
		}
		if err := fn(entry); err != nil {
			return err
		}
	}
	return nil
}

func (d *dir) Delete(_ context.Context, name string) error {
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveDir implements DirRemover.
func (d *dir) RemoveDir(_ context.Context, name string) error {
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	err = root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

// Sync makes all that was put before durable. What it could not, the next Sync
// tries again.
func (d *dir) Sync(ctx context.Context) error {
	d.mu.Lock()
	names := d.dirty
	d.dirty = make(map[string]bool)
	d.mu.Unlock()
	err := d.sync(ctx, names)
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		maps.Copy(d.dirty, names)
	}
	return err
}

// sync makes files durable, and then all directories above them.
func (d *dir) sync(ctx context.Context, names map[string]bool) error {
	if len(names) == 0 {
		return nil
	}
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	dirs := make(map[string]bool)
	for name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := syncFile(root, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // a file that is gone was deleted since
		}
		for up := path.Dir(name); !dirs[up]; up = path.Dir(up) {
			dirs[up] = true
		}
	}
	for name := range dirs {
		f, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) && name != "." {
			continue // it was removed since, with all that was in it
		}
		if err != nil {
			return err
		}
		if err := errors.Join(syncDir(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// syncDir syncs a directory where the file system knows how to.
func syncDir(f *os.File) error {
	err := f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	return err
}

func syncFile(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// holds cannot tell: after a crash a file may have its length and not its bytes.
func (d *dir) holds(context.Context, string, []byte) bool { return false }

func (d *dir) hashName() string { return "" }
