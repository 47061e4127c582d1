package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func (r *raw[H]) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	c := r.begin("getxattr", h, cancel)
	defer c.end()
	value, err := r.volume.Getxattr(c, c.ino, name)
	return r.sized(c, dest, value, err)
}

func (r *raw[H]) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	c := r.begin("listxattr", h, cancel)
	defer c.end()
	names, err := r.volume.Listxattr(c, c.ino)
	var list []byte // each name is ended by a NUL
	for _, name := range names {
		list = append(append(list, name...), 0)
	}
	return r.sized(c, dest, list, err)
}

// sized copies value into dest. The caller gets the length and ERANGE if it does not fit; with an empty dest it has asked for
// nothing but the length.
func (r *raw[H]) sized(c *call, dest, value []byte, err error) (uint32, fuse.Status) {
	if err != nil {
		return 0, r.answer(c, err)
	}
	if len(value) > len(dest) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (r *raw[H]) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	c := r.begin("setxattr", &in.InHeader, cancel)
	defer c.end()
	if xattrPosition(in) != 0 {
		return r.answer(c, syscall.EINVAL)
	}
	return r.answer(c, r.volume.Setxattr(c, c.ino, name, value, in.Flags))
}

func (r *raw[H]) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c := r.begin("removexattr", h, cancel)
	defer c.end()
	return r.answer(c, r.volume.Removexattr(c, c.ino, name))
}
