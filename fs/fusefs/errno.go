package fusefs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// errno is the one table from errors to what programs see. The order counts: an error of the local disk or of the network
// wraps an errno too, which says nothing about the file that the program asked for.
func errno(ctx context.Context, err error) syscall.Errno {
	var number syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return syscall.EINTR
	case errors.Is(err, store.ErrReadOnly):
		return syscall.EROFS
	case errors.Is(err, remote.ErrNoSpace), isFull(err):
		return syscall.ENOSPC
	case errors.Is(err, store.ErrCorrupt), isOutside(err):
		return syscall.EIO
	case errors.Is(err, syscall.ENODATA):
		return syscall.Errno(fuse.ENOATTR) // no such attribute, by the name of this system
	case errors.As(err, &number) && number != 0:
		return number
	}
	// What is left: the remote is away or too slow, or something that nobody has thought of.
	return syscall.EIO
}

// isFull reports whether err is about the local disk being full. A quota that is hit there is none of the volume.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || isOutside(err) && errors.Is(err, syscall.EDQUOT)
}

// isOutside reports whether err comes from something other than the volume: a local file, the network, the remote.
func isOutside(err error) bool {
	for _, sentinel := range []error{remote.ErrNotExist, remote.ErrAuth, remote.ErrUnreachable} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return is[*os.PathError](err) || is[*os.LinkError](err) || is[*os.SyscallError](err) || is[*net.OpError](err)
}

// is reports whether an error of type E is in the chain of err.
func is[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}

// answer turns the outcome of c into a status. EIO never leaves without a line in the log that says what broke.
func (r *raw[H]) answer(c *call, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	number := errno(c, err)
	if number == syscall.EIO {
		r.ioErrors.log(fmt.Sprintf("%s of inode %d: %v", c.op, c.ino, err))
	}
	return fuse.Status(number)
}
