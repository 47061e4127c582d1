package fusefs

import "github.com/hanwen/go-fuse/v2/fuse"

// What requests look like on this system, where it is not the same everywhere.

// renameFlags returns the flags of a rename as Linux numbers them.
func renameFlags(flags uint32) uint32 { return flags }

// xattrPosition returns where in the value a SETXATTR writes.
func xattrPosition(*fuse.SetXAttrIn) uint32 { return 0 }
