package fs

import (
	"syscall"
	"testing"
)

// TestStateXattr follows a file on its way to the remote.
func TestStateXattr(t *testing.T) {
	e := newEnv(t)
	state := func(want string) {
		t.Helper()
		if got, err := e.v.Getxattr(ctx, e.walk("f"), stateXattr); string(got) != want || err != nil {
			t.Errorf("state %q, %v; want %q", got, err, want)
		}
	}
	e.write("f", 0, []byte("one"))
	state("dirty")
	e.commit()
	state("local")
	e.sync()
	state("remote")
	e.write("other", 0, []byte("two"))
	state("remote")
	e.write("f", 0, []byte("three"))
	state("dirty")
	e.wipe()
	state("remote")
	if err := e.v.Setxattr(ctx, e.walk("f"), stateXattr, []byte("x"), 0); err != syscall.EPERM {
		t.Errorf("Setxattr: %v, want EPERM", err)
	}
	if names, err := e.v.Listxattr(ctx, e.walk("f")); len(names) > 0 || err != nil {
		t.Errorf("Listxattr = %q, %v", names, err)
	}
}
