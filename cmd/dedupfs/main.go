// Command dedupfs mounts a deduplicated, encrypted file system that lives on any
// storage rclone can talk to.
//
// It is the only place that puts the parts together: a storage (package remote),
// the repository on it (store), what is local (cache), the file system (fs) and
// its FUSE binding (fs/fusefs). A mount listens on a socket in its cache
// directory (control.go); commands that are given a mounted directory ask there
// instead of opening the repository a second time.
//
// Data goes to standard output, everything else to standard error. Exit codes
// are in exit.go, one table.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
