package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{nil, exitDone, ""},
		{errors.New("a bad day"), exitFailed, "a bad day"},
		{usageError("which one?"), exitUsage, "which one?"},
		{fmt.Errorf("restore: %w", errPartly), exitPartly, "partly"},
		{fmt.Errorf("open: %w", store.ErrNoRepository), exitNoRepository, "dedupfs init"},
		{fmt.Errorf("open: %w", remote.ErrNotExist), exitNoRepository, "dedupfs init"},
		{fmt.Errorf("open: %w: %w", store.ErrNoRepository, remote.ErrNotExist), exitNoRepository, "dedupfs init"},
		{fmt.Errorf("open: %w", cache.ErrInUse{Dir: "/c", PID: 42}), exitInUse, "42"},
		{fmt.Errorf("open: %w", store.ErrPassword), exitPassword, "recovery key"},
		{fmt.Errorf("open: %w", store.ErrFormat), exitTooNew, "upgrade dedupfs"},
		{fmt.Errorf("list: %w", remote.ErrAuth), exitAuth, "credentials"},
		{fmt.Errorf("list: %w", remote.ErrUnreachable), exitUnreachable, "network"},
		{fmt.Errorf("put: %w", remote.ErrNoSpace), exitNoSpace, "storage"},
		{fmt.Errorf("write: %w", syscall.ENOSPC), exitNoSpace, "--cache-dir"},
		{&store.ObjectError{Object: "data/x", Err: store.ErrCorrupt}, exitLost, "data/x"},
		{fmt.Errorf("poll: %w", &store.RollbackError{}), exitHistory, "--read-only"},
		{fmt.Errorf("poll: %w", &store.ForkError{}), exitHistory, ""},
		{fmt.Errorf("umount: %w", errNotRemote), exitNotRemote, "not yet"},
		{fmt.Errorf("list: %w: %w", context.Canceled, remote.ErrUnreachable), exitInterrupted, ""},
		{interrupted{&failure{exitInterrupted, "context canceled"}}, exitInterrupted, "interrupted"},
		{interrupted{fmt.Errorf("list: %w", remote.ErrUnreachable)}, exitInterrupted, "interrupted: list: "},
		{fmt.Errorf("status: %w", &failure{exitHistory, "as the mount said"}), exitHistory, "as the mount said"},
	} {
		code, message := verdict(c.err)
		if code != c.code || !strings.Contains(message, c.says) {
			t.Errorf("verdict(%v) = %d, %q, want %d and a word of %q", c.err, code, message, c.code, c.says)
		}
		if strings.Contains(message, "\n") {
			t.Errorf("verdict(%v) has more than one line", c.err)
		}
	}
}

// TestInterrupted checks that what is said of an interruption has no empty parts and none twice.
func TestInterrupted(t *testing.T) {
	read := fmt.Errorf("read a: %w", context.Canceled)
	for _, c := range []struct {
		err  error
		want string
	}{
		{context.Canceled, "interrupted"},
		{errors.Join(context.Canceled, context.Canceled), "interrupted"},
		{errors.Join(read, context.Canceled, read), "interrupted: read a"},
		{errors.Join(read, errors.New("close b: lost")), "interrupted: read a; close b: lost"},
	} {
		if _, message := verdict(interrupted{c.err}); message != c.want {
			t.Errorf("verdict of %q = %q, want %q", c.err, message, c.want)
		}
	}
}

// The codes that are documented are those that there are.
func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Exit codes")
	table, _, _ = strings.Cut(table, "\n## ")
	documented := map[int]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(table, -1) {
		code, _ := strconv.Atoi(row[1])
		documented[code] = true
	}
	known := []int{exitDone, exitFailed, exitUsage, exitPartly, exitNoRepository, exitInUse, exitPassword, exitTooNew, exitAuth,
		exitUnreachable, exitNoSpace, exitDamaged, exitLost, exitHistory, exitNotRemote, exitConflicts, exitInterrupted}
	for _, code := range known {
		if !documented[code] {
			t.Errorf("exit code %d is not documented", code)
		}
	}
	if len(documented) != len(known) {
		t.Errorf("%d exit codes are documented, %d are known", len(documented), len(known))
	}
}
