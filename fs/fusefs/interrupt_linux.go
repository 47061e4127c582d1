package fusefs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// givesUp reports whether a signal waits for a thread that ends the program or that a user ends programs with, see proc(5). One
// that the kernel has found fatal is a SIGKILL by then.
func givesUp(thread uint32) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return true // there is nobody any more
	}
	pending := (signals(status, "SigPnd:") | signals(status, "ShdPnd:")) &^ signals(status, "SigBlk:")
	caught := signals(status, "SigCgt:")
	return pending&ending != 0 || pending&^caught&^harmless != 0
}

var (
	ending   = signalSet(syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	harmless = signalSet(syscall.SIGCHLD, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCONT,
		syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU) // unless the program says otherwise
)

func signalSet(sigs ...syscall.Signal) (set uint64) {
	for _, s := range sigs {
		set |= 1 << (s - 1)
	}
	return set
}

// signals returns the set that stands behind a label in the status of a thread.
func signals(status []byte, label string) uint64 {
	_, rest, _ := bytes.Cut(status, []byte("\n"+label))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	set, _ := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return set
}
