package store

import (
	"testing"

	"github.com/dedupfs/dedupfs/remote/remotetest"
)

// cheapKDF is as cheap as is allowed.
var cheapKDF = KDF{Memory: 8, Passes: 1, Threads: 1}

var password = []byte("correct horse battery staple")

func initMem(t testing.TB) (*Repository, *remotetest.Mem, string) {
	t.Helper()
	st := remotetest.NewMem()
	r, recovery, err := Init(t.Context(), st, password, &InitOptions{KDF: cheapKDF})
	if err != nil {
		t.Fatal(err)
	}
	r.askAgain = 0
	return r, st, recovery
}

func TestInitOpen(t *testing.T) {
	r, st, recovery := initMem(t)
	for _, secret := range [][]byte{password, []byte(recovery)} {
		got, err := Open(t.Context(), st, secret, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Config() != r.Config() {
			t.Errorf("opened %+v, want %+v", got.Config(), r.Config())
		}
		if id := got.ChunkID([]byte("x")); id != r.ChunkID([]byte("x")) || id == got.NodeID([]byte("x")) {
			t.Errorf("chunk id %s", id)
		}
	}
}
