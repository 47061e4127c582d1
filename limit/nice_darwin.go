package limit

import "golang.org/x/sys/unix"

// Of <sys/resource.h>: a thread in the background has low priority for processor, disks and network.
const (
	prioDarwinThread  = 3
	prioDarwinProcess = 4
	prioDarwinBG      = 0x1000
)

func niceThread() { _ = unix.Setpriority(prioDarwinThread, 0, prioDarwinBG) }

// NiceProcess puts the process behind all others of the machine.
func NiceProcess() { _ = unix.Setpriority(prioDarwinProcess, 0, prioDarwinBG) }
