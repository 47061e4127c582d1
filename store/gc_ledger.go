package store

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// A Standing says whether a multichunk may be deduplicated against.
type Standing uint8

const (
	Unproven  Standing = iota // it may be deleted already: see that it is there, and Vouch for it
	Vouched                   // it was found, or put, in this incarnation
	Forbidden                 // a notice condemns it
)

// A Ledger keeps which multichunks a client may deduplicate against (docs/gc.md, R1 and R3): those that it has found or put during its
// present incarnation, and that no notice condemns. It does not say where chunks lie, and forgets nothing that references made
// before may need. It owns the keys of its database that begin with 'g':
//
//	g#             incarnation(16) whose ledger it is
//	g c name(16)   nothing: the multichunk is condemned
//	g v name(16)   nothing: the client vouches for it
//
// A ledger that has never begun, of a cache without a client, vouches for everything. A Ledger is safe for concurrent use.
type Ledger struct {
	db *badger.DB

	mu    sync.Mutex // guards what follows
	begun bool
	known map[Name]Standing // those looked up last
}

// ledgerHeld is how many multichunks' standing is kept in memory.
const ledgerHeld = 1 << 16

var ledgerKey = []byte("g#")

func condemnedKey(n Name) []byte { return append([]byte("gc"), n[:]...) }

func vouchedKey(n Name) []byte { return append([]byte("gv"), n[:]...) }

// NewLedger returns the ledger that is kept in db.
func NewLedger(db *badger.DB) (*Ledger, error) {
	l := &Ledger{db: db, known: map[Name]Standing{}}
	err := db.View(func(txn *badger.Txn) (err error) {
		l.begun, err = get(txn, ledgerKey, nil)
		return err
	})
	return l, err
}

// Begin makes l the ledger of an incarnation. One of another incarnation is empty then: of what was known before, anything may have
// been deleted while nobody had to ask this client.
func (l *Ledger) Begin(i Incarnation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	same := false
	err := l.db.View(func(txn *badger.Txn) error {
		_, err := get(txn, ledgerKey, func(v []byte) error {
			same = bytes.Equal(v, i[:])
			return nil
		})
		return err
	})
	if err == nil && !same {
		clear(l.known)
		if err = l.db.DropPrefix([]byte("g")); err == nil {
			err = l.db.Update(func(txn *badger.Txn) error { return txn.Set(ledgerKey, i[:]) })
		}
	}
	if err == nil {
		err = l.db.Sync()
	}
	if err != nil {
		return fmt.Errorf("begin ledger: %w", err)
	}
	l.begun = true
	return nil
}

// Standing returns what n may be used for.
func (l *Ledger) Standing(n Name) (Standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.known[n]; ok {
		return s, nil
	}
	s := Unproven
	if !l.begun {
		s = Vouched
	}
	err := l.db.View(func(txn *badger.Txn) error {
		condemned, err := get(txn, condemnedKey(n), nil)
		if err != nil || condemned {
			s = Forbidden
			return err
		}
		vouched, err := get(txn, vouchedKey(n), nil)
		if vouched {
			s = Vouched
		}
		return err
	})
	if err != nil {
		return Forbidden, fmt.Errorf("look up ledger: %w", err)
	}
	l.keep(n, s)
	return s, nil
}

func (l *Ledger) keep(n Name, s Standing) {
	if len(l.known) >= ledgerHeld {
		clear(l.known)
	}
	l.known[n] = s
}

// Vouch says that n is there, which was found out, or seen to, in this incarnation. One that is condemned stays so.
func (l *Ledger) Vouch(n Name) error {
	s, err := l.Standing(n)
	if err != nil || s != Unproven {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[n] == Forbidden {
		return nil
	}
	if err := l.db.Update(func(txn *badger.Txn) error { return txn.Set(vouchedKey(n), nil) }); err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	l.keep(n, Vouched)
	return nil
}

// Condemn forbids deduplication against names. When it returns nil, that lasts.
func (l *Ledger) Condemn(names []Name) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range names {
		l.keep(n, Forbidden) // at once, whatever becomes of the database
	}
	wb := l.db.NewWriteBatch()
	defer wb.Cancel()
	for _, n := range names {
		if err := wb.Set(condemnedKey(n), nil); err != nil {
			return fmt.Errorf("write ledger: %w", err)
		}
	}
	err := wb.Flush()
	if err == nil {
		err = l.db.Sync()
	}
	if err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	return nil
}
