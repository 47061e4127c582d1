package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/fserrors"
)

// kinds says what the errors of some seventy backends mean. The first row that
// matches decides. Few of those errors have types of their own, hence the
// columns: values found with errors.Is, an HTTP status anywhere in the chain,
// an FTP reply, a phrase in the lower-cased text.
var kinds = []struct {
	kind   error // nil: a bad day, trying again may help
	is     []error
	status []int
	ftp    []int
	text   []string
}{{
	kind:   ErrNoSpace,
	is:     []error{syscall.ENOSPC, syscall.EDQUOT},
	status: []int{507},
	ftp:    []int{452, 552},
	text: []string{"no space left", "quotaexceeded", "quota exceeded", "quotalimitreached", "insufficient_space",
		"insufficient storage", "storage_cap_exceeded", "storage_limit_exceeded", "storagefull", "not enough space"},
}, {
	kind:   nil, // before ErrAuth: some say 403 to those who ask too often
	status: []int{408, 425, 429},
	text:   []string{"ratelimitexceeded", "rate limit", "slowdown", "too many requests", "toomanyrequests"},
}, {
	kind:   ErrNotExist,
	is:     []error{fs.ErrorObjectNotFound, fs.ErrorDirNotFound, fs.ErrorIsDir, os.ErrNotExist},
	status: []int{404, 410},
	text:   []string{"nosuchkey", "nosuchbucket"},
}, {
	kind:   ErrAuth,
	is:     []error{os.ErrPermission, syscall.EROFS, fs.ErrorPermissionDenied},
	status: []int{401, 403},
	ftp:    []int{430, 530, 532},
	text: []string{"unable to authenticate", "couldn't fetch token", "empty token found", "invalid_grant", "invalid_client",
		"knownhosts: key", "accessdenied", "access denied", "permission denied", "invalidaccesskeyid", "signaturedoesnotmatch"},
}, {
	kind: ErrUnreachable,
	is: []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EHOSTUNREACH, syscall.EHOSTDOWN,
		syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ETIMEDOUT, syscall.EPIPE,
		syscall.ENOTCONN, syscall.ESTALE, // of a network file system whose server is away
		context.DeadlineExceeded, os.ErrDeadlineExceeded},
	status: []int{502, 503, 504},
	ftp:    []int{421, 425},
	text: []string{"connection refused", "connection reset", "no such host", "no route to host", "network is unreachable",
		"i/o timeout", "handshake timeout", "connection lost"},
}}

// kindOf returns which of the four kinds err is, or nil.
func kindOf(err error) error {
	for _, kind := range []error{ErrNotExist, ErrAuth, ErrUnreachable, ErrNoSpace} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	status, ftp, text := httpStatus(err), 0, strings.ToLower(err.Error())
	if reply := (*textproto.Error)(nil); errors.As(err, &reply) {
		status, ftp = 0, reply.Code
	}
	for _, k := range kinds {
		if slices.ContainsFunc(k.is, func(target error) bool { return errors.Is(err, target) }) ||
			slices.Contains(k.status, status) || slices.Contains(k.ftp, ftp) ||
			slices.ContainsFunc(k.text, func(phrase string) bool { return strings.Contains(text, phrase) }) {
			return k.kind
		}
	}
	if netErr := net.Error(nil); errors.As(err, &netErr) && netErr.Timeout() {
		return ErrUnreachable
	}
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
		return ErrUnreachable
	}
	return nil
}

// httpStatus returns the HTTP status of 400 or more that an error in the chain
// carries in a method or field of the usual names, or 0.
func httpStatus(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := err.(interface{ HTTPStatusCode() int }); ok && e.HTTPStatusCode() >= 400 {
		return e.HTTPStatusCode()
	}
	if status := statusField(reflect.ValueOf(err)); status != 0 {
		return status
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return httpStatus(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if status := httpStatus(err); status != 0 {
				return status
			}
		}
	}
	return 0
}

func statusField(v reflect.Value) int {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return 0
	}
	for _, name := range []string{"StatusCode", "HTTPStatusCode", "Status", "Code"} {
		field, ok := v.Type().FieldByName(name)
		if !ok {
			continue
		}
		f, err := v.FieldByIndexErr(field.Index) // an error if it is in an embedded struct that is nil
		if err == nil && f.CanInt() && f.Int() >= 400 && f.Int() < 600 {
			return int(f.Int())
		}
	}
	return 0
}

// permanent reports whether trying again soon cannot help.
func permanent(err error) bool {
	if fserrors.IsNoRetryError(err) || fserrors.IsFatalError(err) {
		return true
	}
	kind := kindOf(err)
	return kind == ErrNotExist || kind == ErrAuth || kind == ErrNoSpace
}

// retryAfter returns how long the storage asks us to wait, or 0.
func retryAfter(err error) time.Duration {
	if at := fserrors.RetryAfterErrorTime(err); !at.IsZero() {
		return max(0, time.Until(at))
	}
	return 0
}

// An opError says what was done to which object. Its text holds no secrets.
type opError struct {
	op, name string
	kind     error // one of the four, or nil
	err      error
}

// wrap returns err as it goes to the caller, or nil if it is nil.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if done := (*opError)(nil); errors.As(err, &done) {
		return err
	}
	return &opError{op: op, name: name, kind: kindOf(err), err: err}
}

func (e *opError) Error() string {
	what := e.op
	if e.name != "" {
		what += " " + e.name
	}
	switch cause := scrub.text(e.err.Error()); {
	case e.kind == ErrNotExist && !errors.Is(e.err, ErrRootGone):
		return fmt.Sprintf("%s: %v", what, e.kind)
	case e.kind == nil || errors.Is(e.err, e.kind):
		return fmt.Sprintf("%s: %s", what, cause)
	default:
		return fmt.Sprintf("%s: %v: %s", what, e.kind, cause)
	}
}

// Unwrap makes both the kind and the cause known to errors.Is.
func (e *opError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.err}
	}
	return []error{e.kind, e.err}
}

// short is the error of an object that ends too early. It is about the object,
// so reading it again does not help.
func short(off, n, size int64) error {
	return fserrors.NoRetryError(fmt.Errorf("%d bytes from %d of %d: %w", n, off, size, io.ErrUnexpectedEOF))
}
