// Package storetest makes repositories for the tests of packages above store.
package storetest

import (
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// Password opens the repositories that New makes.
const Password = "correct horse battery staple"

// KDF is as cheap as is allowed.
func KDF() store.KDF { return store.KDF{Memory: 8, Passes: 1, Threads: 1} }

// New makes a repository of small multichunks on st, which must be empty.
func New(tb testing.TB, st remote.Storage) *store.Repository {
	tb.Helper()
	return NewConfig(tb, st, store.Config{
		MultichunkSize: 256 << 10,
		GroupSize:      32 << 10,
		SettleTime:     store.NoSettleTime,
	})
}

// NewConfig makes a repository with the given configuration, of which zero fields are the defaults.
func NewConfig(tb testing.TB, st remote.Storage, cfg store.Config) *store.Repository {
	tb.Helper()
	r, _, err := store.Init(tb.Context(), st, []byte(Password), &store.InitOptions{Config: cfg, KDF: KDF()})
	if err != nil {
		tb.Fatalf("make a repository: %v", err)
	}
	return r
}

// Open opens the repository that New made on st once more, as another client would.
func Open(tb testing.TB, st remote.Storage) *store.Repository {
	tb.Helper()
	r, err := store.Open(tb.Context(), st, []byte(Password), nil)
	if err != nil {
		tb.Fatalf("open the repository: %v", err)
	}
	return r
}
