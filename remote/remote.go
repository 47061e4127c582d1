package remote

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rclone/rclone/backend/local"
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/fspath"
)

// Options of Open. Nil is the defaults.
type Options struct {
	Create        bool  // make the root directory if it is missing
	Deferred      bool  // a storage that is unreachable now is no error; each use tries to connect again
	LimitUpload   int64 // bytes per second, 0 is none
	LimitDownload int64 // bytes per second, 0 is none
	Retries       int   // attempts per operation, default 5

	// Pace, unless nil, is called before each operation, which it may hold back.
	Pace func(context.Context) error

	// OnRetry is called before an operation is tried again after d.
	OnRetry func(op, name string, err error, d time.Duration)
}

// A Remote is a Storage on an rclone remote or in a local directory. Its errors
// name operation and object, wrap one of the four kinds where one fits, and hold
// no secrets. It is safe for concurrent use.
type Remote struct {
	url     string // as given
	create  bool
	storage Storage // connection, with retries
	pace    func(context.Context) error

	up, down limit
	stats    counters

	local      atomic.Bool
	connecting chan struct{} // holds a token while somebody connects
	connected  atomic.Pointer[backend]
}

var (
	_ Storage = (*Remote)(nil)
	_ Syncer  = (*Remote)(nil)
)

// Open opens a storage by its rclone name: remote:path, a local path, or
// :backend,option=value:path. The user's rclone configuration and RCLONE_*
// variables are honoured. A local path that is not there is ErrNotExist.
func Open(ctx context.Context, url string, o *Options) (*Remote, error) {
	if o == nil {
		o = &Options{}
	}
	parsed, err := fspath.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("repository %q: %w", Redact(url), err)
	}
	if parsed.Name == "" {
		if url, err = filepath.Abs(url); err != nil {
			return nil, err
		}
	}
	r := &Remote{url: url, create: o.Create, pace: o.Pace, connecting: make(chan struct{}, 1)}
	r.local.Store(parsed.Name == "")
	r.SetLimits(o.LimitUpload, o.LimitDownload)
	r.storage = WithRetry(connection{r}, &RetryOptions{Attempts: o.Retries, OnRetry: func(op, name string, err error, d time.Duration) {
		r.stats.retries.Add(1)
		r.stats.fail()
		if o.OnRetry != nil {
			o.OnRetry(op, name, err, d)
		}
	}})
	if _, err := r.backend(ctx); err != nil && !(o.Deferred && kindOf(err) == ErrUnreachable) {
		return nil, wrap("open", Redact(url), err)
	}
	return r, nil
}

// backend returns the connection, making it if there is none.
func (r *Remote) backend(ctx context.Context) (backend, error) {
	if b := r.connected.Load(); b != nil {
		return *b, nil
	}
	select {
	case r.connecting <- struct{}{}:
		defer func() { <-r.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if b := r.connected.Load(); b != nil {
		return *b, nil
	}
	b, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	r.connected.Store(&b)
	return b, nil
}

func (r *Remote) connect(ctx context.Context) (backend, error) {
	if r.local.Load() {
		r.honourBwLimit()
		return openDir(r.url, r.create, &r.up, &r.down)
	}
	f, err := connect(ctx, r.url)
	if err != nil {
		return nil, err
	}
	if _, ok := f.(*local.Fs); ok {
		r.local.Store(true)
		return openDir(f.Root(), r.create, &r.up, &r.down)
	}
	s := newRcloneStorage(f, &r.up, &r.down, func() { r.stats.corrupt.Add(1) })
	if r.create {
		return s, s.create(ctx)
	}
	return s, nil
}

// honourBwLimit applies RCLONE_BWLIMIT to a local directory, which rclone's own
// limiter of network connections does not see.
func (r *Remote) honourBwLimit() {
	bw := fs.GetConfig(context.Background()).BwLimit.LimitAt(time.Now()).Bandwidth
	if bw.IsSet() && r.up.p.Load() == nil && r.down.p.Load() == nil {
		r.SetLimits(int64(bw.Tx), int64(bw.Rx))
	}
}

// Put implements Storage.
func (r *Remote) Put(ctx context.Context, name string, data []byte) error {
	if err := r.paced(ctx); err != nil {
		return err
	}
	err := r.storage.Put(ctx, name, data)
	return r.stats.count(err, &r.stats.puts, &r.stats.uploaded, len(data))
}

// Get implements Storage.
func (r *Remote) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if err := r.paced(ctx); err != nil {
		return nil, err
	}
	data, err := r.storage.Get(ctx, name, off, n)
	return data, r.stats.count(err, &r.stats.gets, &r.stats.downloaded, len(data))
}

// paced waits until the next operation may begin.
func (r *Remote) paced(ctx context.Context) error {
	if r.pace == nil {
		return nil
	}
	return r.pace(ctx)
}

// List implements Storage.
func (r *Remote) List(ctx context.Context, dir string, fn func(Entry) error) error {
	if err := r.paced(ctx); err != nil {
		return err
	}
	r.stats.lists.Add(1)
	return r.storage.List(ctx, dir, fn)
}

// Delete implements Storage.
func (r *Remote) Delete(ctx context.Context, name string) error {
	err := r.storage.Delete(ctx, name)
	return r.stats.count(err, &r.stats.deletes, nil, 0)
}

// RemoveDir implements DirRemover.
func (r *Remote) RemoveDir(ctx context.Context, name string) error {
	return r.storage.(DirRemover).RemoveDir(ctx, name)
}

// Sync implements Syncer. For all but local directories it has nothing to do.
func (r *Remote) Sync(ctx context.Context) error {
	return r.storage.(Syncer).Sync(ctx)
}

// Local reports whether the storage is a local directory. While a deferred
// storage has not been reached, an alias of one is not known for what it is.
func (r *Remote) Local() bool { return r.local.Load() }

// String returns the URL with its secrets masked.
func (r *Remote) String() string { return Redact(r.url) }

// SettleTimeDefault returns how long a listing may lag behind the puts that were
// acknowledged, unless the user knows better.
func (r *Remote) SettleTimeDefault() time.Duration {
	if r.local.Load() {
		return 0
	}
	return time.Hour
}

// HashName returns the name of the hash that uploads are verified with, besides
// their size; "" if there is none, or the storage has not been reached yet.
func (r *Remote) HashName() string {
	if b := r.connected.Load(); b != nil {
		return (*b).hashName()
	}
	return ""
}

// SetLimits changes the speed limits, in bytes per second; 0 is none.
func (r *Remote) SetLimits(upload, download int64) {
	r.up.set(upload)
	r.down.set(download)
}

// Stats are totals since Open.
type Stats struct {
	Puts, Gets, Lists, Deletes int64     // operations, each counted once however often it was tried
	Uploaded, Downloaded       int64     // bytes of those that succeeded
	Retries                    int64     // attempts beyond the first
	Corrupt                    int64     // uploads that did not arrive as they were sent
	LastError                  time.Time // of an attempt; zero if there was none
}

// Stats returns the totals.
func (r *Remote) Stats() Stats { return r.stats.read() }

type counters struct {
	puts, gets, lists, deletes atomic.Int64
	uploaded, downloaded       atomic.Int64
	retries, corrupt           atomic.Int64
	lastError                  atomic.Int64 // Unix nanoseconds
}

func (c *counters) fail() { c.lastError.Store(time.Now().UnixNano()) }

// count counts one operation and its bytes, and returns err.
func (c *counters) count(err error, ops, bytes *atomic.Int64, n int) error {
	ops.Add(1)
	switch {
	case err == nil && bytes != nil:
		bytes.Add(int64(n))
	case err != nil && kindOf(err) != ErrNotExist:
		c.fail()
	}
	return err
}

func (c *counters) read() Stats {
	s := Stats{
		Puts: c.puts.Load(), Gets: c.gets.Load(), Lists: c.lists.Load(), Deletes: c.deletes.Load(),
		Uploaded: c.uploaded.Load(), Downloaded: c.downloaded.Load(),
		Retries: c.retries.Load(), Corrupt: c.corrupt.Load(),
	}
	if ns := c.lastError.Load(); ns != 0 {
		s.LastError = time.Unix(0, ns)
	}
	return s
}

// A connection is the storage of a Remote, connected when first used.
type connection struct{ r *Remote }

var _ Syncer = connection{}

// use calls fn with the backend. One that cannot reach the storage is given up:
// a new one does not wait as long as the old one has learned to.
func (c connection) use(ctx context.Context, fn func(backend) error) error {
	b, err := c.r.backend(ctx)
	if err != nil {
		return err
	}
	used := c.r.connected.Load()
	err = fn(b)
	if err != nil && ctx.Err() == nil && !c.r.local.Load() && kindOf(err) == ErrUnreachable {
		c.r.connected.CompareAndSwap(used, nil)
	}
	return err
}

func (c connection) Put(ctx context.Context, name string, data []byte) error {
	return c.use(ctx, func(b backend) error { return b.Put(ctx, name, data) })
}

func (c connection) Get(ctx context.Context, name string, off, n int64) (data []byte, err error) {
	err = c.use(ctx, func(b backend) (err error) {
		data, err = b.Get(ctx, name, off, n)
		return err
	})
	return data, err
}

func (c connection) List(ctx context.Context, dir string, fn func(Entry) error) error {
	return c.use(ctx, func(b backend) error { return b.List(ctx, dir, fn) })
}

func (c connection) Delete(ctx context.Context, name string) error {
	return c.use(ctx, func(b backend) error { return b.Delete(ctx, name) })
}

func (c connection) RemoveDir(ctx context.Context, name string) error {
	return c.use(ctx, func(b backend) error {
		if d, ok := b.(DirRemover); ok {
			return d.RemoveDir(ctx, name)
		}
		return nil
	})
}

func (c connection) Sync(ctx context.Context) error {
	return c.use(ctx, func(b backend) error {
		if s, ok := b.(Syncer); ok {
			return s.Sync(ctx)
		}
		return nil
	})
}

func (c connection) holds(ctx context.Context, name string, data []byte) bool {
	b, err := c.r.backend(ctx)
	return err == nil && b.holds(ctx, name, data)
}
