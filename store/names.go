package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// The directories of everything but multichunks.
const (
	repositoryDir = "repository"
	keysDir       = "keys"
	keyringDir    = "keyring"
	clientsDir    = "clients"
	commitsDir    = "commits"
)

// groupBits is how many bits of a sequence number tell commits of one group apart.
const groupBits = 8

// seqGroup is a directory of 1<<groupBits commits of one chain.
type seqGroup uint64

func (s Seq) group() seqGroup { return seqGroup(s >> groupBits) }

func (g seqGroup) String() string { return fmt.Sprintf("%014x", uint64(g)) }

func (s Seq) digits() string { return fmt.Sprintf("%016x", uint64(s)) }

func chainDir(c chain) string {
	return commitsDir + "/" + c.client.String() + "/" + c.incarnation.String()
}

func groupDir(c chain, g seqGroup) string { return chainDir(c) + "/" + g.String() }

// parseID reads 16 bytes in lower-case hex, and nothing else.
func parseID(s string) (id [16]byte, ok bool) {
	if len(s) != 2*len(id) || strings.ToLower(s) != s {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}

// parseNumber reads a number of exactly digits lower-case hex digits.
func parseNumber(s string, digits int) (n uint64, ok bool) {
	if len(s) != digits || strings.ToLower(s) != s || strings.ContainsAny(s, "+-_") {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 16, 64)
	return n, err == nil
}

// parsePair reads the names of registrations, 32 digits, a dash and 32 digits.
func parsePair(s string) (a, b [16]byte, ok bool) {
	left, right, _ := strings.Cut(s, "-")
	a, okA := parseID(left)
	b, okB := parseID(right)
	return a, b, okA && okB
}

// parseCommitName reads the last element of a commit's name.
func parseCommitName(s string) (seq Seq, suffix [16]byte, ok bool) {
	left, right, _ := strings.Cut(s, "-")
	n, okN := parseNumber(left, 16)
	suffix, okS := parseID(right)
	return Seq(n), suffix, okN && okS && n > 0
}

// listIDs calls fn for each entry of dir that is named by 16 bytes in hex, once, and counts the others.
func listIDs(ctx context.Context, st remote.Storage, dir string, dirs bool, fn func(id [16]byte, e remote.Entry)) (foreign int, err error) {
	seen := make(map[string]bool)
	err = st.List(ctx, dir, func(e remote.Entry) error {
		id, ok := parseID(e.Name)
		switch {
		case seen[e.Name]:
		case !ok || e.Dir != dirs:
			foreign++
		default:
			fn(id, e)
		}
		seen[e.Name] = true
		return nil
	})
	return foreign, err
}

// listObjects calls fn for each object of ours in dir, once. Where there is no such directory there are none.
func listObjects(ctx context.Context, st remote.Storage, dir string, fn func(id [16]byte, e remote.Entry)) error {
	if _, err := listIDs(ctx, st, dir, false, fn); err != nil && !errors.Is(err, remote.ErrNotExist) {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	return nil
}

// An ObjectError tells what is wrong with one object on the remote.
type ObjectError struct {
	Object string // its name
	Err    error
}

func (e *ObjectError) Error() string { return e.Object + ": " + e.Err.Error() }
func (e *ObjectError) Unwrap() error { return e.Err }

// aboutObject reports whether err is about the bytes of an object, and would be the same if it were read again.
func aboutObject(err error) bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFormat) }

// openSealed opens a small sealed object, and parses what is in it.
func openSealed[T any](keys *keyring, kind seal.Kind, name string, wire []byte, parse func(plain []byte) (T, error)) (v T, err error) {
	plain, _, err := keys.OpenPadded(kind, name, wire)
	if err != nil {
		return v, err
	}
	return parse(plain)
}

// getSealed fetches the object of that name, and opens it. It returns its size on the wire too. What open says is an *ObjectError.
func getSealed[T any](ctx context.Context, r *Repository, name string, open func(name string, wire []byte) (T, error)) (v T, size int, err error) {
	wire, err := r.st.Get(ctx, name, 0, -1)
	if err != nil {
		return v, 0, fmt.Errorf("get %s: %w", name, err)
	}
	if v, err = open(name, wire); err != nil {
		return v, 0, &ObjectError{name, err}
	}
	r.keepCopy(name, wire)
	return v, len(wire), nil
}

// putSealed seals an object that has no features, and puts it. It returns its size on the wire.
func (r *Repository) putSealed(ctx context.Context, kind seal.Kind, name string, plain []byte) (size int, err error) {
	if err := r.ReadOnly(); err != nil {
		return 0, err
	}
	wire, err := r.keys.SealPadded(kind, name, plain, seal.Features{})
	if err != nil {
		return 0, fmt.Errorf("seal %s: %w", name, err)
	}
	return len(wire), r.putCopied(ctx, name, wire)
}

// putSmall puts an object, reads it back, and makes it survive a power cut where that takes a step of its own. An
// error that came although the object is there is none.
func putSmall(ctx context.Context, st remote.Storage, name string, wire []byte) error {
	putErr := st.Put(ctx, name, wire)
	if putErr != nil && (errors.Is(putErr, remote.ErrUnreachable) || ctx.Err() != nil) {
		return fmt.Errorf("put %s: %w", name, putErr)
	}
	got, err := st.Get(ctx, name, 0, -1)
	switch {
	case err == nil && bytes.Equal(got, wire):
	case putErr != nil:
		return fmt.Errorf("put %s: %w", name, putErr)
	case err != nil:
		return fmt.Errorf("read back %s: %w", name, err)
	default:
		return fmt.Errorf("read back %s: %w", name, ErrCorrupt)
	}
	if s, ok := st.(remote.Syncer); ok {
		if err := s.Sync(ctx); err != nil {
			return fmt.Errorf("sync %s: %w", name, err)
		}
	}
	return nil
}
