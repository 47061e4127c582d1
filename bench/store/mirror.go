package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dedupfs/dedupfs/fs"
)

const (
	blockSize = 128 << 10 // bytes of one read or write, as the kernel makes them
	pageSize  = 4 << 10   // bytes that are compared and written by mirror.inPlace
)

// A mirror makes a directory of a volume equal to one outside, as `rsync -a --delete` does: what has the same size and time
// is left alone, and what has not is written under another name and moved into place.
type mirror struct {
	ctx     context.Context
	v       *fs.Volume
	inPlace bool // write pages that differ into the file that is there
}

// top makes currentName in the root equal to from.
func (m *mirror) top(from string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	old, err := m.list(fs.Root)
	if err != nil {
		return err
	}
	return m.directory(from, info, fs.Root, currentName, old[currentName])
}

// list returns what stands in a directory.
func (m *mirror) list(dir fs.Ino) (map[string]*fs.Attr, error) {
	entries := map[string]*fs.Attr{}
	err := m.v.Readdir(m.ctx, dir, 0, true, func(e fs.DirEntry) bool {
		if e.Attr != nil {
			entries[string(e.Name)] = e.Attr
		}
		return true
	})
	for _, a := range entries {
		m.v.Forget(a.Ino, 1)
	}
	return entries, err
}

// directory makes name in parent equal to the directory from. Old is what stands there, nil for nothing.
func (m *mirror) directory(from string, info os.FileInfo, parent fs.Ino, name string, old *fs.Attr) error {
	if old == nil {
		a, err := m.v.Mkdir(m.ctx, parent, []byte(name), 0o755, fs.Cred{})
		if err != nil {
			return err
		}
		defer m.v.Forget(a.Ino, 1)
		old = &a
	}
	stale, err := m.list(old.Ino)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := m.entry(filepath.Join(from, e.Name()), old.Ino, e.Name(), stale[e.Name()]); err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		delete(stale, e.Name())
	}
	for name, a := range stale {
		if err := m.remove(old.Ino, name, a); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	if a, err := m.v.Getattr(m.ctx, old.Ino, nil); err != nil || m.same(info, &a) {
		return err
	}
	return m.attributes(old.Ino, info)
}

// entry makes name in dir equal to whatever from is.
func (m *mirror) entry(from string, dir fs.Ino, name string, old *fs.Attr) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if old != nil && old.Mode&syscall.S_IFMT != modeOf(info)&syscall.S_IFMT {
		if err := m.remove(dir, name, old); err != nil {
			return err
		}
		old = nil
	}
	switch {
	case info.IsDir():
		return m.directory(from, info, dir, name, old)
	case old != nil && m.same(info, old):
		return nil
	case info.Mode()&os.ModeSymlink != 0:
		return m.symlink(from, info, dir, name, old)
	case info.Mode().IsRegular():
		return m.file(from, info, dir, name, old)
	}
	return fmt.Errorf("cannot store a file of mode %v", info.Mode())
}

// same reports whether rsync would not look into a file.
func (m *mirror) same(info os.FileInfo, a *fs.Attr) bool {
	return (info.IsDir() || info.Size() == int64(a.Size)) && info.ModTime().Equal(a.Mtime.Time()) &&
		modeOf(info) == a.Mode
}

// modeOf returns type and permissions as stat does.
func modeOf(info os.FileInfo) uint32 { return uint32(info.Sys().(*syscall.Stat_t).Mode) }

func (m *mirror) symlink(from string, info os.FileInfo, dir fs.Ino, name string, old *fs.Attr) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if old != nil {
		if err := m.v.Unlink(m.ctx, dir, []byte(name)); err != nil {
			return err
		}
	}
	a, err := m.v.Symlink(m.ctx, dir, []byte(name), []byte(target), fs.Cred{})
	if err != nil {
		return err
	}
	defer m.v.Forget(a.Ino, 1)
	return m.attributes(a.Ino, info)
}

func (m *mirror) file(from string, info os.FileInfo, dir fs.Ino, name string, old *fs.Attr) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if m.inPlace && old != nil {
		return m.patch(f, info, old)
	}
	temporary := []byte("." + name + ".tmp")
	a, h, err := m.v.Create(m.ctx, dir, temporary, syscall.O_WRONLY|syscall.O_EXCL, 0o600, fs.Cred{})
	if err != nil {
		return err
	}
	defer m.v.Forget(a.Ino, 1)
	err = m.write(f, h, nil)
	h.Release()
	if err != nil {
		return err
	}
	if err := m.attributes(a.Ino, info); err != nil {
		return err
	}
	return m.v.Rename(m.ctx, dir, temporary, dir, []byte(name), 0)
}

// patch changes the file old where it differs from f.
func (m *mirror) patch(f *os.File, info os.FileInfo, old *fs.Attr) error {
	h, err := m.v.Open(m.ctx, old.Ino, syscall.O_RDWR, fs.Cred{})
	if err != nil {
		return err
	}
	defer h.Release()
	if err := m.write(f, h, make([]byte, blockSize)); err != nil {
		return err
	}
	size := uint64(info.Size())
	if _, err := m.v.Setattr(m.ctx, old.Ino, h, fs.SetAttr{Size: &size}, fs.Cred{}); err != nil {
		return err
	}
	return m.attributes(old.Ino, info)
}

// write copies f to h. With room for a block in old, it writes only pages that differ from what is there.
func (m *mirror) write(f *os.File, h *fs.Handle, old []byte) error {
	block := make([]byte, blockSize)
	for off := int64(0); ; off += blockSize {
		n, err := io.ReadFull(f, block)
		if err == io.EOF {
			return nil
		}
		if err != nil && err != io.ErrUnexpectedEOF {
			return err
		}
		if err := m.writeBlock(h, block[:n], off, old); err != nil {
			return err
		}
	}
}

func (m *mirror) writeBlock(h *fs.Handle, block []byte, off int64, old []byte) error {
	if old == nil {
		_, err := h.Write(m.ctx, block, off)
		return err
	}
	n, err := h.Read(m.ctx, old[:len(block)], off)
	if err != nil {
		return err
	}
	for at := 0; at < len(block); at += pageSize {
		end := min(at+pageSize, len(block))
		if end <= n && bytes.Equal(block[at:end], old[at:end]) {
			continue
		}
		if _, err := h.Write(m.ctx, block[at:end], off+int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// attributes gives ino the owner, mode and modification time of info.
func (m *mirror) attributes(ino fs.Ino, info os.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	mode := modeOf(info) & 0o7777
	mtime := fs.Timespec{Sec: info.ModTime().Unix(), Nsec: uint32(info.ModTime().Nanosecond())}
	set := fs.SetAttr{Uid: &st.Uid, Gid: &st.Gid, Mtime: &mtime}
	if info.Mode()&os.ModeSymlink == 0 {
		set.Mode = &mode
	}
	_, err := m.v.Setattr(m.ctx, ino, nil, set, fs.Cred{})
	return err
}

// remove removes name from dir, with all that lies below.
func (m *mirror) remove(dir fs.Ino, name string, a *fs.Attr) error {
	if a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return m.v.Unlink(m.ctx, dir, []byte(name))
	}
	below, err := m.list(a.Ino)
	if err != nil {
		return err
	}
	for name, b := range below {
		if err := m.remove(a.Ino, name, b); err != nil {
			return err
		}
	}
	return m.v.Rmdir(m.ctx, dir, []byte(name))
}
