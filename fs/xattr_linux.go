package fs

import "syscall"

const errNoXattr = syscall.ENODATA
