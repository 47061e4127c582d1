package fusefs

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"
)

// mountMem mounts an empty volume in memory until the test ends.
func mountMem(t *testing.T, o *Options) (mnt string, v *memVolume, s *Server) {
	t.Helper()
	v = newMemVolume()
	mnt = t.TempDir()
	return mnt, v, mount(t, v, mnt, o)
}

func mount(t *testing.T, v *memVolume, dir string, o *Options) *Server {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("this system has no FUSE")
	}
	if o == nil {
		o = &Options{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Mount(ctx, v, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Unmount(); err != nil {
			t.Error(err)
			s.Detach()
		}
	})
	return s
}
