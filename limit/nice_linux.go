package limit

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	ioprioWhoProcess = 1
	ioprioIdle       = 3 << 13 // class "idle"
)

func niceThread() { niceTask(0) }

// niceTask puts a thread behind others; 0 is the one that calls.
func niceTask(tid int) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, tid, niceness)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioIdle)
}

// NiceProcess puts all threads of the process, and those that they start, behind all others of the machine.
func NiceProcess() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		niceTask(0)
		return
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			niceTask(tid)
		}
	}
}
