//go:build !linux

package fs

import "syscall"

// ENOATTR of BSD systems.
const errNoXattr = syscall.Errno(93)
