//go:build linux

package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScript runs what users type, from testdata/script. `code N COMMAND...`
// wants the exit code N.
func TestScript(t *testing.T) {
	needFUSE(t)
	buildNewer(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars,
				"PATH="+filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"),
				"HOME="+env.WorkDir,
				"XDG_CACHE_HOME="+filepath.Join(env.WorkDir, "xdg-cache"),
				"DEDUPFS_PASSWORD="+password,
				"CLOSED_PORT="+closedPort(t),
			)
			env.Defer(func() { unmountBelow(t, env.WorkDir) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": wantCode,
		},
		RequireExplicitExec: true,
	})
}

// wantCode runs a command that has to end with a given exit code.
func wantCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (*exec.ExitError)(nil); err != nil {
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// closedPort returns a port of this machine at which nobody listens.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// unmountBelow clears the mounts that a script has left below dir, and fails
// the test if there were any.
func unmountBelow(t *testing.T, dir string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir) {
			t.Errorf("%s is left mounted", fields[4])
			if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}
}
