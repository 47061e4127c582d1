package fusefs

import "github.com/hanwen/go-fuse/v2/fuse"

// What requests look like on this system, where it is not the same everywhere.

const (
	renameSwap = 1 << 1 // RENAME_SWAP of macOS
	renameExcl = 1 << 2 // RENAME_EXCL of macOS

	renameNoReplace = 1 << 0 // RENAME_NOREPLACE of Linux
	renameExchange  = 1 << 1 // RENAME_EXCHANGE of Linux
)

// renameFlags returns the flags of a rename as Linux numbers them.
func renameFlags(flags uint32) (linux uint32) {
	if flags&renameSwap != 0 {
		linux |= renameExchange
	}
	if flags&renameExcl != 0 {
		linux |= renameNoReplace
	}
	return linux
}

// xattrPosition returns where in the value a SETXATTR writes; only resource forks are ever written in pieces.
func xattrPosition(in *fuse.SetXAttrIn) uint32 { return in.Position }

// givesUp reports whether a program that got a signal gives up what it waits for. Which one it was cannot be seen here.
func givesUp(uint32) bool { return true }
