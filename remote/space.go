package remote

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Space is how much a storage can hold, in bytes.
type Space struct {
	Total int64
	Free  int64 // for us
}

// Space asks how much room there is. Many storages cannot tell: the error is
// errors.ErrUnsupported then.
func (r *Remote) Space(ctx context.Context) (Space, error) {
	b, err := r.backend(ctx)
	if err != nil {
		return Space{}, wrap("space of", Redact(r.url), err)
	}
	s, err := b.space(ctx)
	if err != nil {
		return Space{}, wrap("space of", Redact(r.url), err)
	}
	return s, nil
}

func (s *rcloneStorage) space(ctx context.Context) (Space, error) {
	about := s.f.Features().About
	if about == nil {
		return Space{}, errors.ErrUnsupported
	}
	usage, err := about(ctx)
	if err != nil {
		return Space{}, err
	}
	switch {
	case usage.Free == nil:
	case usage.Total != nil:
		return Space{Total: *usage.Total, Free: min(*usage.Free, *usage.Total)}, nil
	case usage.Used != nil:
		return Space{Total: *usage.Used + *usage.Free, Free: *usage.Free}, nil
	}
	return Space{}, errors.ErrUnsupported // without a quota there is no end
}

func (d *dir) space(context.Context) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.path, &st); err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", d.path, err)
	}
	block := int64(st.Bsize)
	// What is kept for root counts as used.
	return Space{Total: int64(st.Blocks) * block, Free: int64(st.Bavail) * block}, nil
}
