package main

import "syscall"

// peakMemory returns bytes.
func peakMemory(u *syscall.Rusage) int64 { return u.Maxrss }
