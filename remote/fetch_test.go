package remote_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
)

// TestFetch brings objects of a local directory into files, and leaves to Get what that is for.
func TestFetch(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte("object "), 100_000)
	r := open(t, t.TempDir(), nil)
	if err := r.Put(t.Context(), "a/b", data); err != nil {
		t.Fatal(err)
	}
	n, err := r.Fetch(t.Context(), "a/b", f)
	if got, _ := os.ReadFile(f.Name()); err != nil || n != int64(len(data)) || !bytes.Equal(got, data) {
		t.Errorf("Fetch = %d bytes, %v; the file has %d, want %d", n, err, len(got), len(data))
	}
	if s := r.Stats(); s.Gets != 1 || s.Downloaded != n {
		t.Errorf("counted %d gets of %d bytes, want 1 of %d", s.Gets, s.Downloaded, n)
	}
	for _, name := range []string{"a/none", "a"} {
		if _, err := r.Fetch(t.Context(), name, f); !errors.Is(err, remote.ErrNotExist) {
			t.Errorf("Fetch(%s) = %v, want ErrNotExist", name, err)
		}
	}
	r.SetLimits(0, 1<<20)
	if _, err := r.Fetch(t.Context(), "a/b", f); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Fetch with a limit = %v, want ErrUnsupported", err)
	}
	if _, err := open(t, ":memory:fetch", nil).Fetch(t.Context(), "a/b", f); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Fetch from memory = %v, want ErrUnsupported", err)
	}
}
