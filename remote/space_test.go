package remote_test

import (
	"errors"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
)

// TestSpace asks for the room of a local directory, of a backend on top of one, and of one that cannot tell.
func TestSpace(t *testing.T) {
	for _, url := range []string{t.TempDir(), ":combine,upstreams='sub=" + t.TempDir() + "':sub"} {
		s, err := open(t, url, &remote.Options{Create: true}).Space(t.Context())
		if err != nil {
			t.Errorf("Space of %s: %v", url, err)
		}
		if s.Free <= 0 || s.Free > s.Total {
			t.Errorf("Space of %s = %d of %d bytes free", url, s.Free, s.Total)
		}
	}
	if s, err := open(t, ":memory:space", nil).Space(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Space of a storage without limits = %v, %v; want %v", s, err, errors.ErrUnsupported)
	}
}
