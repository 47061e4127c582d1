package fusefs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// fsType is the type of file system that mounts show, behind "fuse.".
const fsType = "dedupfs"

// Options are the parameters of a mount. The zero value is the defaults.
type Options struct {
	// Mount are options as for mount(8), one each, as "ro" or "fsname=x". Those that are not known are refused.
	Mount []string

	// AllowOther lets users other than the one who mounts in. Permissions of files are checked in any case.
	AllowOther bool

	// ReadOnly makes the kernel refuse changes.
	ReadOnly bool

	// Source is what mount(8) and df show as the device. It is public: no secrets. Default: "dedupfs".
	Source string

	// VolumeName is what the Finder shows. Default: Source. macOS only.
	VolumeName string

	// CacheTimeout is how long the kernel keeps names and attributes without asking again. Default: an hour; changes are
	// announced anyway.
	CacheTimeout time.Duration

	// Pending is the age at which a request is named in the log. Default: a minute.
	Pending time.Duration

	// Log takes errors that programs see as EIO, and requests that are pending for too long. Default: slog.Default().
	Log *slog.Logger
}

func (o *Options) withDefaults() *Options {
	d := Options{}
	if o != nil {
		d = *o
	}
	if d.Source == "" {
		d.Source = fsType
	}
	if d.VolumeName == "" {
		d.VolumeName = d.Source
	}
	if d.CacheTimeout == 0 {
		d.CacheTimeout = time.Hour
	}
	if d.Pending == 0 {
		d.Pending = time.Minute
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	return &d
}

// Server is a mounted volume.
type Server struct {
	fuse *fuse.Server
	dir  string
	done chan struct{} // closed when nothing is served any more
}

// readyTimeout bounds how long a new mount may take to answer its first request.
const readyTimeout = 30 * time.Second

// Mount mounts v at dir and serves it until it is unmounted. It returns when programs can use the mount; if it fails there is
// none. A dead mount of an earlier process at dir is cleared first. ctx is for mounting only.
func Mount[H Handle](ctx context.Context, v Volume[H], dir string, o *Options) (*Server, error) {
	o = o.withDefaults()
	fuseOptions, err := mountOptions(o)
	if err != nil {
		return nil, err
	}
	if dir, err = mountPoint(ctx, dir, o.Log); err != nil {
		return nil, err
	}
	// A root that cannot be shown would leave a mount that cannot even be looked at.
	var none H
	if _, err := v.Getattr(ctx, fs.Root, none); err != nil {
		return nil, fmt.Errorf("read the root directory: %w", err)
	}

	r := newRaw(v, o)
	server, err := fuse.NewServer(r, dir, fuseOptions)
	if err != nil {
		ClearDead(dir, o.Log)
		return nil, mountError(dir, err)
	}
	s := &Server{fuse: server, dir: dir, done: make(chan struct{})}
	go s.serve(r.calls, o)
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", dir, err), s.Detach())
	}
	v.SetNotify(notifier{server})
	tune(dir, o.Log)
	return s, nil
}

func newRaw[H Handle](v Volume[H], o *Options) *raw[H] {
	return &raw[H]{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		volume:        v,
		log:           o.Log,
		ioErrors:      newLimitedLog(o.Log),
		timeout:       o.CacheTimeout,
		calls:         newCalls(),
	}
}

// serve answers requests until the mount is gone.
func (s *Server) serve(cs *calls, o *Options) {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		cs.watch(o.Log, o.Pending, s.done)
	}()
	s.fuse.Serve()
	close(s.done)
	<-watched
}

// waitReady returns when the kernel has had an answer from us.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("no request is answered"))
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- s.fuse.WaitMount() }()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.done:
		return errors.New("unmounted at once")
	case err := <-ready:
		if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
			return nil // an answer too: this user may not look into the root directory
		}
		return err
	}
}

// Wait returns when the mount is gone, all requests are answered and all files are released.
func (s *Server) Wait() { <-s.done }

// Done is closed when Wait would return.
func (s *Server) Done() <-chan struct{} { return s.done }

// Dir is the mount point, without symbolic links.
func (s *Server) Dir() string { return s.dir }

// Unmount takes the mount away. While programs use it it fails with an error that is syscall.EBUSY. Once the mount is gone
// it returns nil.
func (s *Server) Unmount() error {
	if s.gone() {
		return nil
	}
	err := unmount(s.dir)
	if err != nil && !s.gone() {
		return fmt.Errorf("unmount %s: %w", s.dir, err)
	}
	s.Wait()
	return nil
}

// Detach takes the mount out of the directory tree at once. Programs that have files open in it keep them; Wait returns when
// the last is closed.
func (s *Server) Detach() error {
	if s.gone() {
		return nil
	}
	if err := detach(s.dir); err != nil && !s.gone() {
		return fmt.Errorf("detach %s: %w", s.dir, err)
	}
	return nil
}

func (s *Server) gone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// mountError says what to do where that is known.
func mountError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENODEV), errors.Is(err, os.ErrNotExist) && !exists("/dev/fuse"):
		return fmt.Errorf("mount %s: this system has no FUSE; load the fuse module, or run with access to /dev/fuse: %w", dir, err)
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("mount %s: only root can do without fusermount3; install fuse3: %w", dir, err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("mount %s: mounting is not permitted here (a container needs CAP_SYS_ADMIN): %w", dir, err)
	}
	return fmt.Errorf("mount %s: %w", dir, err)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
