package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/dedupfs/dedupfs/remote"
)

// EachMultichunk lists all multichunks and calls fn with the name and the length on the remote of each once.
func (r *Repository) EachMultichunk(ctx context.Context, fn func(n Name, size int64) error) error {
	return r.eachMultichunk(ctx, fn)
}

// OtherBytes returns what all objects but multichunks take on the remote, in bytes.
func (r *Repository) OtherBytes(ctx context.Context) (sum int64, err error) {
	var walk func(dir string) error
	walk = func(dir string) error {
		var dirs []string
		err := r.st.List(ctx, dir, func(e remote.Entry) error {
			name := e.Name
			if dir != "" {
				name = dir + "/" + e.Name
			}
			switch {
			case e.Dir && name != dataDir:
				dirs = append(dirs, name)
			case !e.Dir:
				sum += max(0, e.Size)
			}
			return nil
		})
		if err != nil && !errors.Is(err, remote.ErrNotExist) {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, sub := range dirs {
			if err := walk(sub); err != nil {
				return err
			}
		}
		return nil
	}
	return sum, walk("")
}
