package cache_test

import "golang.org/x/sys/unix"

func mountTmpfs(dir, options string) error {
	return unix.Mount("dedupfs-test", dir, "tmpfs", 0, options)
}

func unmountTmpfs(dir string) error { return unix.Unmount(dir, 0) }
