package fs

import (
	"errors"
	"syscall"
	"testing"
)

func TestACL(t *testing.T) {
	e := newEnv(t)
	e.write("f", 0, []byte("x"))
	f := e.walk("f")
	mode := func(ino Ino) uint32 {
		t.Helper()
		a, err := e.v.Getattr(ctx, ino, nil)
		if err != nil {
			t.Fatal(err)
		}
		return a.Mode & 0o7777
	}
	set := func(ino Ino, name string, l acl) {
		t.Helper()
		if err := e.v.Setxattr(ctx, ino, name, l.encode(), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("one that is a mode is not kept", func(t *testing.T) {
		set(f, aclAccess, acl{{aclUserObj, 7, 0}, {aclGroupObj, 5, 0}, {aclOther, 4, 0}})
		if got := mode(f); got != 0o754 {
			t.Errorf("mode %o, want 754", got)
		}
		if _, err := e.v.Getxattr(ctx, f, aclAccess); err != errNoXattr {
			t.Errorf("Getxattr: %v, want none", err)
		}
	})
	named := acl{{aclUserObj, 6, 0}, {aclUser, 7, 1000}, {aclGroupObj, 4, 0}, {aclMask, 6, 0}, {aclOther, 0, 0}}
	t.Run("the mask is the group's mode, and chmod changes it", func(t *testing.T) {
		set(f, aclAccess, named)
		if got := mode(f); got != 0o660 {
			t.Errorf("mode %o, want 660", got)
		}
		m := uint32(0o640)
		if _, err := e.v.Setattr(ctx, f, nil, SetAttr{Mode: &m}, Cred{}); err != nil {
			t.Fatal(err)
		}
		b, err := e.v.Getxattr(ctx, f, aclAccess)
		if err != nil {
			t.Fatal(err)
		}
		l, err := parseACL(b)
		if err != nil || l.class(aclGroupObj).perm != 4 || l.mode(0) != 0o640 {
			t.Errorf("list %v, %v, want a mask of 4", l, err)
		}
	})
	t.Run("a default list is inherited", func(t *testing.T) {
		d, err := e.v.Mkdir(ctx, Root, []byte("d"), 0o755, Cred{})
		if err != nil {
			t.Fatal(err)
		}
		set(d.Ino, aclDefault, named)
		sub, err := e.v.Mkdir(ctx, d.Ino, []byte("sub"), 0o777, Cred{Umask: 0o077})
		if err != nil {
			t.Fatal(err)
		}
		if got := sub.Mode & 0o777; got != 0o660 {
			t.Errorf("mode %o, want 660: the umask does not count", got)
		}
		for _, name := range []string{aclDefault, aclAccess} {
			if _, err := e.v.Getxattr(ctx, sub.Ino, name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("what is none is refused", func(t *testing.T) {
		for _, bad := range [][]byte{{1}, {2, 0, 0, 0, 1}, acl{{aclUserObj, 7, 0}}.encode(), acl{{aclUserObj, 9, 0}, {aclGroupObj, 4, 0}, {aclOther, 0, 0}}.encode()} {
			if err := e.v.Setxattr(ctx, f, aclAccess, bad, 0); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("Setxattr(%x): %v, want EINVAL", bad, err)
			}
		}
	})
}
