package experiment

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const maxrssUnit = 1 << 10 // bytes

// threadTime returns what this thread has used of the processor.
func threadTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
