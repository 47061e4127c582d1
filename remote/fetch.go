package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// A Fetcher is a Storage that can bring a whole object into a file without having
// it in memory. It is worth having where that takes less work than Get.
type Fetcher interface {
	// Fetch writes the object to the start of file and returns its length. The
	// error is errors.ErrUnsupported where Get is as good. After any error the
	// file may hold anything.
	Fetch(ctx context.Context, name string, file *os.File) (int64, error)
}

var _ Fetcher = (*Remote)(nil)

// Fetch implements Fetcher for local directories, where the kernel copies. It
// does not try again.
func (r *Remote) Fetch(ctx context.Context, name string, file *os.File) (int64, error) {
	b, err := r.backend(ctx)
	if err != nil {
		return 0, wrap("fetch", name, err)
	}
	d, ok := b.(*dir)
	if !ok || d.down.p.Load() != nil { // a limit is kept by Get
		return 0, errors.ErrUnsupported
	}
	if err := r.paced(ctx); err != nil {
		return 0, err
	}
	n, err := d.fetch(name, file)
	return n, wrap("fetch", name, r.stats.count(err, &r.stats.gets, &r.stats.downloaded, int(n)))
}

func (d *dir) fetch(name string, file *os.File) (int64, error) {
	root, err := d.open()
	if err != nil {
		return 0, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, ErrNotExist
	}
	n, err := io.Copy(file, f)
	if err == nil && n != info.Size() {
		err = fmt.Errorf("copied %d of %d bytes: %w", n, info.Size(), io.ErrUnexpectedEOF)
	}
	return n, err
}
