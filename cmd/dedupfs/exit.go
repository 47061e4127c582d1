package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// Exit codes. They are an interface: scripts rely on them.
const (
	exitDone         = 0
	exitFailed       = 1
	exitUsage        = 2
	exitPartly       = 3   // some of what was asked for is done
	exitNoRepository = 10  // there is no repository at that place
	exitInUse        = 11  // another process uses the cache directory
	exitPassword     = 12  // no key slot opens with the password
	exitTooNew       = 13  // written by a newer version
	exitAuth         = 14  // the storage refused the credentials
	exitUnreachable  = 15  // the storage does not answer
	exitNoSpace      = 16  // the storage or the disk is full
	exitDamaged      = 20  // damage found that can be repaired
	exitLost         = 21  // damage found that cannot be repaired
	exitHistory      = 22  // history was rolled back or forked
	exitNotRemote    = 30  // not all on the remote when the time was up
	exitConflicts    = 31  // merges have renamed something
	exitInterrupted  = 130 // by Ctrl-C
)

// exits says for each kind of failure the exit code, and what can be done about
// it. The first row that matches decides.
var exits = []struct {
	kind   error
	code   int
	advice string
}{
	{context.Canceled, exitInterrupted, ""},
	{errNotRemote, exitNotRemote, ""},
	{errPartly, exitPartly, ""},
	{errUsage, exitUsage, ""},
	{store.ErrPassword, exitPassword, "try again, or use a recovery key"},
	{store.ErrFormat, exitTooNew, ""},
	{store.ErrNoRepository, exitNoRepository, "check the path, or create a repository with `dedupfs init`"},
	{store.ErrTwoRepositories, exitFailed, ""},
	{store.ErrExists, exitFailed, "choose an empty place"},
	{store.ErrRollback, exitHistory, "`dedupfs clients accept` goes on from what is there, and `dedupfs mount --read-only` reads it"},
	{remote.ErrAuth, exitAuth, "check the credentials in the rclone configuration"},
	{remote.ErrUnreachable, exitUnreachable, "check the network and the address, then try again"},
	{remote.ErrNoSpace, exitNoSpace, "free some space on the storage, then try again"},
	{syscall.ENOSPC, exitNoSpace, "free some space on the disk, or use another --cache-dir"},
	{store.ErrCorrupt, exitLost, "run `dedupfs check --read-data` to see what else is damaged"},
	{remote.ErrNotExist, exitNoRepository, "check the path, or create a repository with `dedupfs init`"},
}

// Kinds of failure that arise in the command itself.
var (
	errUsage     = errors.New("usage")
	errPartly    = errors.New("partly done")
	errNotRemote = errors.New("not yet on the remote")
)

// A failure is an error whose exit code is known: of a running mount that was
// asked over its socket, or of a check that weighed what it found.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (f *failure) Error() string { return f.Message }

// fail returns a failure with a message of the given format.
func fail(code int, format string, args ...any) error {
	return &failure{code, fmt.Errorf(format, args...).Error()}
}

// usageError returns an error about how the command was called.
func usageError(format string, args ...any) error {
	return fail(exitUsage, format, args...)
}

// interrupted is the failure of a command that was interrupted meanwhile.
type interrupted struct{ err error }

// Error says what was interrupted, as far as that is known, and of several joined errors each once.
func (i interrupted) Error() string {
	said := []string{}
	for line := range strings.Lines(i.err.Error()) {
		what := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(line), context.Canceled.Error()), ": ")
		if what != "" && !slices.Contains(said, what) {
			said = append(said, what)
		}
	}
	if len(said) == 0 {
		return "interrupted"
	}
	return "interrupted: " + strings.Join(said, "\n")
}

func (i interrupted) Unwrap() []error { return []error{context.Canceled, i.err} }

// verdict returns the exit code for err and the line that tells people what is
// wrong and what they can do.
func verdict(err error) (code int, message string) {
	if err == nil {
		return exitDone, ""
	}
	code, message = judge(err)
	return code, strings.ReplaceAll(message, "\n", "; ") // of joined errors
}

func judge(err error) (code int, message string) {
	var known *failure
	var inUse cache.ErrInUse
	switch {
	case errors.As(err, &known):
		return known.Code, err.Error()
	case errors.As(err, &inUse):
		return exitInUse, err.Error()
	}
	for _, row := range exits {
		if !errors.Is(err, row.kind) {
			continue
		}
		if row.advice == "" {
			return row.code, err.Error()
		}
		return row.code, err.Error() + "; " + row.advice
	}
	return exitFailed, err.Error()
}
