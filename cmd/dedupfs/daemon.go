package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A daemon is this program again, in a session of its own. The parent hands it
// the password through one pipe and waits at another for the word that it is
// ready. Until then the child writes to the parent's standard error, so that
// its messages are seen; afterwards to its log.

// daemonVariable marks the child. It is not the variable of a flag.
const daemonVariable = "_DEDUPFS_DAEMON"

// Descriptors of the child.
const (
	passwordFD = 3
	readyFD    = 4
)

// isDaemon reports whether this process is the child.
func isDaemon() bool { return os.Getenv(daemonVariable) != "" }

// ready is what the child says when it serves.
type ready struct {
	Log string `json:"log"` // where it logs from now on
}

// startDaemon runs this command line again in the background and returns when
// the child is ready, or has failed; then with its exit code, as the child has
// said why.
func startDaemon(ctx context.Context, password []byte) (ready, error) {
	exe, err := os.Executable()
	if err != nil {
		return ready{}, fmt.Errorf("start daemon: %w", err)
	}
	passwordR, passwordW, err := os.Pipe()
	if err != nil {
		return ready{}, fmt.Errorf("start daemon: %w", err)
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return ready{}, fmt.Errorf("start daemon: %w", err)
	}
	defer readyR.Close()

	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = daemonEnvironment(os.Environ())
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{passwordR, readyW}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	passwordR.Close()
	readyW.Close()
	if err != nil {
		passwordW.Close()
		return ready{}, fmt.Errorf("start daemon: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	// A child that ends early reads nothing; its exit code says why.
	_, _ = passwordW.Write(password)
	passwordW.Close()
	return awaitReady(cmd, readyR)
}

func awaitReady(cmd *exec.Cmd, r io.Reader) (ready, error) {
	var word ready
	if err := json.NewDecoder(bufio.NewReader(r)).Decode(&word); err == nil {
		return word, cmd.Process.Release()
	}
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return ready{}, &failure{Code: exit.ExitCode()}
	}
	return ready{}, fmt.Errorf("daemon ended before it was ready: %v", err)
}

// daemonEnvironment marks env as the child's and takes the password out of it.
func daemonEnvironment(env []string) []string {
	kept := []string{daemonVariable + "=1"}
	for _, v := range env {
		if !strings.HasPrefix(v, passwordVariable+"=") {
			kept = append(kept, v)
		}
	}
	return kept
}

// daemonPassword returns the password that the parent has sent.
func daemonPassword() ([]byte, error) {
	unix.CloseOnExec(passwordFD)
	unix.CloseOnExec(readyFD)
	f := os.NewFile(passwordFD, "password")
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return nil, fmt.Errorf("read password: %w", err)
	}
	return checkPassword(b, "the parent process")
}

// announceReady lets the parent go. What is written to the standard streams
// from now on, a panic above all, goes to log.
func announceReady(log *os.File) error {
	for _, fd := range []int{1, 2} {
		if err := dup2(int(log.Fd()), fd); err != nil {
			return fmt.Errorf("redirect output: %w", err)
		}
	}
	f := os.NewFile(readyFD, "ready")
	defer f.Close()
	return json.NewEncoder(f).Encode(ready{Log: log.Name()})
}
