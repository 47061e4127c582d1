package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/fserrors"
)

type httpError struct {
	StatusCode int
	Text       string
}

func (e *httpError) Error() string { return e.Text }

type codeError struct {
	Code int
	Body string
}

func (e codeError) Error() string { return e.Body }

type embeddingError struct{ *httpError }

func (embeddingError) Error() string { return "embeds nothing" }

type smithyError struct{ status int }

func (e smithyError) Error() string       { return "api error" }
func (e smithyError) HTTPStatusCode() int { return e.status }

func TestKindOf(t *testing.T) {
	path := func(err error) error { return &os.PathError{Op: "open", Path: "x", Err: err} }
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, test := range []struct {
		err  error
		want error
	}{
		{path(syscall.ENOSPC), ErrNoSpace},
		{path(syscall.EDQUOT), ErrNoSpace},
		{&httpError{507, "insufficient storage"}, ErrNoSpace},
		{&httpError{403, "storageQuotaExceeded: the user's quota"}, ErrNoSpace},
		{&textproto.Error{Code: 552, Msg: "exceeded allocation"}, ErrNoSpace},
		{path(syscall.ENOENT), ErrNotExist},
		{fmt.Errorf("stat: %w", fs.ErrorObjectNotFound), ErrNotExist},
		{fs.ErrorDirNotFound, ErrNotExist},
		{&httpError{404, "gone"}, ErrNotExist},
		{smithyError{404}, ErrNotExist},
		{path(syscall.EACCES), ErrAuth},
		{path(syscall.EPERM), ErrAuth},
		{path(syscall.EROFS), ErrAuth},
		{fmt.Errorf("operation error S3: %w", smithyError{403}), ErrAuth},
		{&httpError{401, "unauthorized"}, ErrAuth},
		{&textproto.Error{Code: 530, Msg: "login incorrect"}, ErrAuth},
		{errors.New("ssh: handshake failed: ssh: unable to authenticate, attempted methods [none password]"), ErrAuth},
		{errors.New("couldn't fetch token: invalid_grant"), ErrAuth},
		{codeError{403, "userRateLimitExceeded"}, nil},
		{&httpError{429, "too many"}, nil},
		{fserrors.NewErrorRetryAfter(time.Second), nil},
		{&httpError{500, "internal"}, nil},
		{errors.New("something else"), nil},
		{codeError{Code: 7}, nil},
		{embeddingError{}, nil},
		{embeddingError{&httpError{401, ""}}, ErrAuth},
		{dial(syscall.ECONNREFUSED), ErrUnreachable},
		{dial(syscall.EHOSTUNREACH), ErrUnreachable},
		{&net.DNSError{Err: "server misbehaving", Name: "h"}, ErrUnreachable},
		{&net.DNSError{IsTimeout: true}, ErrUnreachable},
		{path(syscall.ENOTCONN), ErrUnreachable},
		{path(syscall.ESTALE), ErrUnreachable},
		{context.DeadlineExceeded, ErrUnreachable},
		{context.Canceled, nil},
		{&httpError{503, "unavailable"}, ErrUnreachable},
		{&textproto.Error{Code: 421, Msg: "closing"}, ErrUnreachable},
		{fmt.Errorf("x: %w", ErrAuth), ErrAuth},
		{errors.Join(errors.New("a"), &httpError{401, "b"}), ErrAuth},
	} {
		if got := kindOf(test.err); got != test.want {
			t.Errorf("kindOf(%T %v) = %v, want %v", test.err, test.err, got, test.want)
		}
		err := wrap("get", "ab/cd", test.err)
		if test.want != nil && !errors.Is(err, test.want) || !errors.Is(err, test.err) {
			t.Errorf("wrap(%v) lost its kind or cause", test.err)
		}
		if !strings.HasPrefix(err.Error(), "get ab/cd: ") || strings.Contains(err.Error(), ": :") {
			t.Errorf("text %q", err)
		}
	}
}

func TestPermanent(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{ErrAuth, true},
		{ErrNotExist, true},
		{ErrNoSpace, true},
		{ErrUnreachable, false},
		{short(0, 2, 1), true},
		{errors.New("bad day"), false},
		{fserrors.FatalError(errors.New("x")), true},
		{wrap("put", "a", fserrors.NoRetryError(errors.New("x"))), true},
	} {
		if got := permanent(test.err); got != test.want {
			t.Errorf("permanent(%v) = %v, want %v", test.err, got, test.want)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{fs.ErrorObjectNotFound, "get ab: not found"},
		{&os.PathError{Op: "openat", Path: "ab", Err: syscall.EACCES}, "get ab: access refused: openat ab: permission denied"},
		{fmt.Errorf("/mnt/disk: %w", ErrRootGone), "get ab: /mnt/disk: root of the repository not found"},
		{errors.New("Get \"https://u:pw123@host/x?X-Amz-Signature=abcdef&y=1\": EOF"), "get ab: Get \"https://u:***@host/x?X-Amz-Signature=***&y=1\": EOF"},
	} {
		if got := wrap("get", "ab", test.err).Error(); got != test.want {
			t.Errorf("text %q, want %q", got, test.want)
		}
	}
}
