package store

import (
	"testing"

	"github.com/dgraph-io/badger/v4"
)

func TestLedger(t *testing.T) {
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	open := func() *Ledger {
		t.Helper()
		l, err := NewLedger(db)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(l *Ledger, n byte, want Standing) {
		t.Helper()
		for _, l := range []*Ledger{l, open()} {
			if got, err := l.Standing(Name{n}); got != want || err != nil {
				t.Errorf("Standing(%d) = %v, %v, want %v", n, got, err, want)
			}
		}
	}
	l := open()
	check(l, 1, Vouched) // nobody's
	do(l.Begin(Incarnation{1}))
	check(l, 1, Unproven)
	do(l.Vouch(Name{1}))
	do(l.Vouch(Name{2}))
	check(l, 1, Vouched)
	do(l.Condemn([]Name{{2}, {3}}))
	check(l, 2, Forbidden)
	do(l.Vouch(Name{3}))
	check(l, 3, Forbidden)
	do(l.Begin(Incarnation{1}))
	check(l, 1, Vouched)
	check(l, 2, Forbidden)
	do(l.Begin(Incarnation{2}))
	check(l, 1, Unproven)
	check(l, 2, Unproven)
}
