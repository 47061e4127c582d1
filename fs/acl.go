package fs

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// Names of the extended attributes that hold POSIX access control lists, in the kernel's encoding (acl(5)).
const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// Tags of entries, in the order in which they stand.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

const aclVersion = 2

// aclEntry is one entry of a list.
type aclEntry struct {
	tag, perm uint16
	id        uint32
}

type acl []aclEntry

// parseACL decodes a list and checks that it is one.
func parseACL(b []byte) (acl, error) {
	if len(b) < 4 || (len(b)-4)%8 != 0 || binary.LittleEndian.Uint32(b) != aclVersion {
		return nil, syscall.EINVAL
	}
	var l acl
	for b = b[4:]; len(b) > 0; b = b[8:] {
		l = append(l, aclEntry{binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])})
	}
	if len(l) > 0 && !l.valid() {
		return nil, syscall.EINVAL
	}
	return l, nil
}

func (l acl) valid() bool {
	count := map[uint16]int{}
	last := uint16(0)
	for _, e := range l {
		if e.perm&^7 != 0 || e.tag < last || e.tag&(e.tag-1) != 0 || e.tag == 0 || e.tag > aclOther {
			return false
		}
		last = e.tag
		count[e.tag]++
	}
	named := count[aclUser]+count[aclGroup] > 0
	return count[aclUserObj] == 1 && count[aclGroupObj] == 1 && count[aclOther] == 1 &&
		count[aclMask] <= 1 && (!named || count[aclMask] == 1)
}

func (l acl) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// class returns the entry that stands for one of the three classes of a mode: the mask stands for the group, if there is one.
func (l acl) class(tag uint16) *aclEntry {
	if tag == aclGroupObj {
		if i := slices.IndexFunc(l, func(e aclEntry) bool { return e.tag == aclMask }); i >= 0 {
			return &l[i]
		}
	}
	return &l[slices.IndexFunc(l, func(e aclEntry) bool { return e.tag == tag })]
}

// modeClasses are the classes of a mode and where their bits stand.
var modeClasses = []struct {
	tag   uint16
	shift uint
}{{aclUserObj, 6}, {aclGroupObj, 3}, {aclOther, 0}}

// mode returns mode with the permissions that l gives.
func (l acl) mode(mode uint32) uint32 {
	mode &^= 0o777
	for _, c := range modeClasses {
		mode |= uint32(l.class(c.tag).perm) << c.shift
	}
	return mode
}

// chmod changes l as chmod(2) does.
func (l acl) chmod(mode uint32) {
	for _, c := range modeClasses {
		l.class(c.tag).perm = uint16(mode>>c.shift) & 7
	}
}

// restrict takes away what the creator of a file did not ask for.
func (l acl) restrict(mode uint32) {
	for _, c := range modeClasses {
		l.class(c.tag).perm &= uint16(mode>>c.shift) & 7
	}
}

// plain reports whether l says no more than a mode.
func (l acl) plain() bool { return len(l) == 3 }

func aclRecord(ino Ino, name string, l acl) *store.Entry {
	return &store.Entry{Key: []byte(xattrKey(ino, name)), Value: append([]byte{xattrInline}, l.encode()...)}
}

// inheritACL gives a new inode the default list of its directory. It reports whether there was one: then the umask does
// not count.
func (t *tx) inheritACL(dir, ino Ino, n *attrs) (bool, error) {
	e, err := t.get(t.ctx, xattrKey(dir, aclDefault))
	if err != nil || e == nil {
		return false, err
	}
	value, err := t.v.xattrValue(t.ctx, e)
	if err != nil {
		return false, err
	}
	l, err := parseACL(value)
	if err != nil || len(l) == 0 {
		return false, err
	}
	if n.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		t.put(aclRecord(ino, aclDefault, l))
	}
	access := slices.Clone(l)
	access.restrict(n.Mode)
	n.Mode = access.mode(n.Mode)
	if !access.plain() {
		t.put(aclRecord(ino, aclAccess, access))
	}
	return true, nil
}

// chmodACL keeps an access list in step with a mode that is set.
func (t *tx) chmodACL(ino Ino, mode uint32) error {
	e, err := t.get(t.ctx, xattrKey(ino, aclAccess))
	if err != nil || e == nil {
		return err
	}
	value, err := t.v.xattrValue(t.ctx, e)
	if err != nil {
		return err
	}
	l, err := parseACL(value)
	if err != nil || len(l) == 0 {
		return err
	}
	l.chmod(mode)
	t.put(aclRecord(ino, aclAccess, l))
	return nil
}

// checkACL looks at a list that is to be set on an inode with attributes n. An access list changes the mode. It reports
// whether the list need not be kept, because it says nothing of its own.
func checkACL(name string, value []byte, n *attrs) (drop bool, err error) {
	l, err := parseACL(value)
	if err != nil {
		return false, err
	}
	if name == aclDefault {
		if n.Mode&syscall.S_IFMT != syscall.S_IFDIR && len(l) > 0 {
			return false, syscall.EACCES
		}
		return len(l) == 0, nil
	}
	if len(l) == 0 {
		return true, nil
	}
	n.Mode = l.mode(n.Mode)
	return l.plain(), nil
}
