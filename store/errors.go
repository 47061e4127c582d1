package store

import (
	"errors"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// Errors of opening and making a repository.
var (
	// ErrNoRepository says that nothing of ours lies there.
	ErrNoRepository = errors.New("no repository there")

	// ErrExists says that a new repository was asked for where something lies already.
	ErrExists = errors.New("not empty")

	// ErrTwoRepositories says that two machines made a repository in one place at the same time.
	ErrTwoRepositories = errors.New("two repositories in one place")

	// ErrPassword says that no key slot opens with the password.
	ErrPassword = seal.ErrPassword

	// ErrFormat says that an object was written by somebody with the keys and a newer program.
	ErrFormat = seal.ErrFormat
)

// Errors of using one.
var (
	// ErrCorrupt says that bytes are not what somebody with the keys wrote under that name, or not what an id stands
	// for.
	ErrCorrupt = seal.ErrCorrupt

	// ErrNotFound says that the repository holds nothing under an id or a name.
	ErrNotFound = errors.New("not in the repository")

	// ErrReadOnly says that the repository has features that this program may read but not write.
	ErrReadOnly = errors.New("read-only for this version of the program; upgrade dedupfs to write")

	// ErrRollback says that the remote shows a client's history otherwise than it was seen before. The error is a
	// *RollbackError or a *ForkError.
	ErrRollback = errors.New("history is not what was seen before")
)
