package limit

import "runtime"

// niceness of work in the background, as of nice(1).
const niceness = 10

// Nice gives the goroutine that calls it a thread of its own, until it ends, and puts that thread behind all others of the
// machine: for the processor, and for the disks where the system knows that. What the system refuses is left as it is.
func Nice() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, for its priority cannot be raised again
	niceThread()
}
