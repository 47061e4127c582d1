package fusefs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

func TestErrno(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	dial := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, tc := range []struct {
		name string
		ctx  context.Context
		err  error
		want syscall.Errno
	}{
		{"bare", nil, syscall.ENOTEMPTY, syscall.ENOTEMPTY},
		{"wrapped", nil, fmt.Errorf("rmdir x: %w", syscall.ENOTEMPTY), syscall.ENOTEMPTY},
		{"no attribute", nil, syscall.ENODATA, syscall.Errno(fuse.ENOATTR)},
		{"corrupt", nil, fmt.Errorf("chunk 1: %w", store.ErrCorrupt), syscall.EIO},
		{"newer repository", nil, fmt.Errorf("write: %w", store.ErrReadOnly), syscall.EROFS},
		{"remote full", nil, fmt.Errorf("put: %w", remote.ErrNoSpace), syscall.ENOSPC},
		{"remote away", nil, fmt.Errorf("get: %w: %w", remote.ErrUnreachable, syscall.ENETUNREACH), syscall.EIO},
		{"object gone", nil, fmt.Errorf("get: %w: %w", remote.ErrNotExist, syscall.ENOENT), syscall.EIO},
		{"network", nil, dial, syscall.EIO},
		{"local file gone", nil, &os.PathError{Op: "open", Path: "log", Err: syscall.ENOENT}, syscall.EIO},
		{"local disk full", nil, &os.PathError{Op: "write", Path: "log", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{"local quota", nil, &os.PathError{Op: "write", Path: "log", Err: syscall.EDQUOT}, syscall.ENOSPC},
		{"interrupted", interrupted, fmt.Errorf("get: %w", context.Canceled), syscall.EINTR},
		{"stopped, not interrupted", nil, fmt.Errorf("get: %w", context.Canceled), syscall.EIO},
		{"too slow", nil, context.DeadlineExceeded, syscall.EIO},
		{"unknown", nil, errors.New("surprise"), syscall.EIO},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			if got := errno(ctx, tc.err); got != tc.want {
				t.Errorf("errno(%v) = %v, want %v", tc.err, got, tc.want)
			}
		})
	}
}

func TestLimitedLog(t *testing.T) {
	l := &limitedLog{burst: 2, period: time.Second}
	now := time.Unix(1, 0)
	for i, want := range []bool{true, true, false, false, false} {
		if write, dropped := l.take(now); write != want || dropped != 0 {
			t.Errorf("line %d: take = %v, %d; want %v, 0", i, write, dropped, want)
		}
	}
	if write, dropped := l.take(now.Add(time.Second)); !write || dropped != 3 {
		t.Errorf("next period: take = %v, %d; want true, 3", write, dropped)
	}
}
