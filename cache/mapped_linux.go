package cache

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// residentBytes returns how many bytes of memory this process has, and how many of these are of mapped files, its own program among
// them; zeros if that is not known.
func residentBytes() (all, mapped int64) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	var size, resident, shared int64
	if _, err := fmt.Sscan(string(b), &size, &resident, &shared); err != nil {
		return 0, 0
	}
	page := int64(os.Getpagesize())
	return resident * page, shared * page
}

// pageOut has the kernel take back the pages that this process has mapped of path, or of files below it. They are read again when they
// are needed; so what only memory holds, as a program's variables, is left alone. MADV_PAGEOUT harms nothing if something else is mapped at the address meanwhile, as MADV_DONTNEED would.
func pageOut(path string) {
	if path == "" {
		return
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		_, name, ok := strings.Cut(s.Text(), "/")
		if name = "/" + name; !ok || name != path && !strings.HasPrefix(name, path+"/") {
			continue
		}
		if _, access, _ := strings.Cut(s.Text(), " "); strings.HasPrefix(access, "rw-p") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(s.Text(), "%x-%x", &from, &to); err != nil {
			continue
		}
		// The address is that of a mapping outside of Go's heap, and only the kernel looks at it.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_PAGEOUT) // an older kernel does not know it
	}
}
