package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"
)

// A MemberState says what garbage collection makes of an incarnation.
type MemberState uint8

const (
	MemberActive  MemberState = iota // may need anything: nothing is deleted before it has acknowledged that
	MemberRetired                    // has ended in good order, and needs nothing
	MemberEvicted                    // has been given up, see Evict
)

// String returns the state as people read it.
func (s MemberState) String() string {
	return [...]string{"active", "retired", "evicted"}[s]
}

// A Member is one incarnation of a client that has registered.
type Member struct {
	Client      ClientID
	Incarnation Incarnation
	Host        string
	Registered  time.Time // zero if the registration is gone
	Last        Head      // its newest commit; zero if it has published nothing
	Published   time.Time // when that was, by the client's clock; zero if it has published nothing
	State       MemberState
	Unheard     int // notices that it has not acknowledged and has to
}

// Seen returns when the member was last heard of, by its own clock.
func (m *Member) Seen() time.Time {
	if m.Published.IsZero() {
		return m.Registered
	}
	return m.Published
}

// Members returns all incarnations that have registered or published, in the order of client and registration.
func (r *Repository) Members(ctx context.Context) ([]Member, error) {
	s, err := r.survey(ctx)
	if err != nil {
		return nil, fmt.Errorf("list clients: %w", err)
	}
	members, err := r.members(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("list clients: %w", err)
	}
	return members, nil
}

func (r *Repository) members(ctx context.Context, s *survey) ([]Member, error) {
	registrations, err := r.Registrations(ctx)
	if err != nil {
		return nil, err
	}
	all := map[chain]*Member{}
	member := func(c chain) *Member {
		if all[c] == nil {
			all[c] = &Member{Client: c.client, Incarnation: c.incarnation}
		}
		return all[c]
	}
	for _, g := range registrations {
		if s.ended[g.Incarnation] {
			continue // what is left of it goes
		}
		m := member(chain{g.Client, g.Incarnation})
		m.Host, m.Registered = g.Host, g.Time
	}
	for c, head := range s.heads {
		m := member(c)
		m.Last, m.Published = head.Head(), head.Time
		if m.Host == "" {
			m.Host = head.Host
		}
	}
	var members []Member
	for c, m := range all {
		m.State = s.stateOf(c)
		for _, n := range s.notices {
			if s.active[c] && !s.acknowledges(c, n) {
				m.Unheard++
			}
		}
		members = append(members, *m)
	}
	slices.SortFunc(members, func(a, b Member) int {
		if c := bytes.Compare(a.Client[:], b.Client[:]); c != 0 {
			return c
		}
		if c := a.Seen().Compare(b.Seen()); c != 0 {
			return c
		}
		return bytes.Compare(a.Incarnation[:], b.Incarnation[:])
	})
	return members, nil
}

func (s *survey) stateOf(c chain) MemberState {
	if _, evicted := s.evicted[c]; evicted {
		return MemberEvicted
	}
	if head := s.heads[c]; head != nil && head.Retired {
		return MemberRetired
	}
	return MemberActive
}

func (s *survey) acknowledges(c chain, n *Notice) bool {
	head := s.heads[c]
	return head != nil && slices.Contains(head.Acks, n.ID)
}

// Evict gives up incarnations that will not be heard of again: garbage collection does not wait for them any more, once all others
// have acknowledged that. What one of them publishes later counts for nothing. It returns the last commits that count, zero where
// there is none. An incarnation that is none, or no longer active, is ErrNotFound, and nothing is evicted.
func (r *Repository) Evict(ctx context.Context, evict ...Incarnation) ([]Head, error) {
	s, err := r.survey(ctx)
	if err != nil {
		return nil, fmt.Errorf("evict: %w", err)
	}
	last, err := s.evictions(evict)
	if err != nil {
		return nil, err
	}
	if err := r.putInFull(ctx, func() error { return r.putNotice(ctx, &Notice{Evicted: last}) }); err != nil {
		return nil, fmt.Errorf("evict: publish notice: %w", err)
	}
	return last, nil
}
