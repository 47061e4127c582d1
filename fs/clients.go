package fs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// Client is one incarnation of a machine that uses the repository.
type Client struct {
	Client      string     `json:"client"`
	Incarnation string     `json:"incarnation"`
	Host        string     `json:"host"`
	State       string     `json:"state"` // active, retired or evicted
	Self        bool       `json:"self"`  // this machine, where the volume is mounted or open
	Seq         uint64     `json:"seq"`   // number of its newest commit; 0 if it has none
	Seen        *time.Time `json:"last_seen,omitempty"`
	Lag         uint64     `json:"lag"`           // commits of others that its newest commit has not seen
	Unheard     int        `json:"unheard"`       // notices of garbage collection that wait for its answer
	Pending     int64      `json:"pending_bytes"` // what it has not uploaded; known of this machine only
}

// Clients lists who uses the repository, or has used it.
func (v *Volume) Clients(ctx context.Context) ([]Client, error) {
	members, err := v.repo.Members(ctx)
	if err != nil {
		return nil, err
	}
	heads := map[chain]store.Head{}
	for _, m := range members {
		heads[chain{m.Client, m.Incarnation}] = m.Last
	}
	me := v.ca.State()
	clients := make([]Client, 0, len(members))
	for _, m := range members {
		c := Client{Client: m.Client.String(), Incarnation: m.Incarnation.String(), Host: m.Host, State: m.State.String(),
			Seq: uint64(m.Last.Seq), Unheard: m.Unheard, Self: m.Client == me.Client && m.Incarnation == me.Incarnation}
		if seen := m.Seen(); !seen.IsZero() {
			c.Seen = &seen
		}
		if c.Self {
			c.Pending = v.ca.Pending().Bytes + v.staged.Load()
		}
		if err := v.describeClient(ctx, &c, m, heads); err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// describeClient adds what the newest commit of a client tells.
func (v *Volume) describeClient(ctx context.Context, c *Client, m store.Member, heads map[chain]store.Head) error {
	has := history{}
	if !m.Last.IsZero() {
		commit, err := v.repo.GetCommit(ctx, m.Last)
		if err != nil {
			return fmt.Errorf("newest commit of client %s: %w", m.Client, err)
		}
		has = historyOf(commit)
		if commit.Host != "" {
			c.Host = commit.Host
		}
	}
	for ch, head := range heads {
		if seen := has[ch].Seq; head.Seq > seen {
			c.Lag += uint64(head.Seq - seen)
		}
	}
	return nil
}

// ErrNoClient says that nobody goes by a name.
var ErrNoClient = fmt.Errorf("no such client; list them with: dedupfs clients list: %w", syscall.ENOENT)

// EvictClients gives up the active incarnations that a name means: the host name of one client, or the beginning of the id of a
// client or an incarnation. Garbage collection does not wait for them any more, and nothing that they publish later counts. It
// returns them. With dry nothing changes.
func (v *Volume) EvictClients(ctx context.Context, name string, dry bool) ([]Client, error) {
	if err := v.repo.ReadOnly(); err != nil {
		return nil, err
	}
	all, err := v.Clients(ctx)
	if err != nil {
		return nil, err
	}
	found, err := namedClients(all, name)
	if err != nil || dry {
		return found, err
	}
	members, err := v.repo.Members(ctx)
	if err != nil {
		return nil, err
	}
	var evict []store.Incarnation
	for _, m := range members {
		if slices.ContainsFunc(found, func(c Client) bool { return c.Incarnation == m.Incarnation.String() }) {
			evict = append(evict, m.Incarnation)
		}
	}
	_, err = v.repo.Evict(ctx, evict...)
	return found, err
}

// minPrefix is the shortest beginning of an id that names something, in digits.
const minPrefix = 4

// namedClients returns the active ones that a name means, all of one client.
func namedClients(all []Client, name string) ([]Client, error) {
	begins := func(id string) bool { return len(name) >= minPrefix && strings.HasPrefix(id, name) }
	var found []Client
	for _, c := range all {
		if c.State == store.MemberActive.String() && (c.Host == name || begins(c.Client) || begins(c.Incarnation)) {
			found = append(found, c)
		}
	}
	switch {
	case name == "" || len(found) == 0:
		return nil, fmt.Errorf("%s: %w", name, ErrNoClient)
	case slices.ContainsFunc(found, func(c Client) bool { return c.Client != found[0].Client }):
		return nil, fmt.Errorf("%s means several clients; name one by the beginning of its id", name)
	case slices.ContainsFunc(found, func(c Client) bool { return c.Self }):
		return nil, fmt.Errorf("%s is this machine, which goes on; to give its local state up, unmount and delete its cache directory first", name)
	}
	return found, nil
}

// SetName renames this client: what it publishes from now on bears the name. It is on the remote with the next commit, which
// comes at once.
func (v *Volume) SetName(ctx context.Context, name string) error {
	if v.opt.ReadOnly {
		return syscall.EROFS
	}
	if err := checkName([]byte(name)); err != nil || strings.ContainsAny(name, "\n\r\t") {
		return fmt.Errorf("client name %q: use up to 255 bytes without /", name)
	}
	if err := v.ca.UpdateState(func(s *State) { s.Host = name }); err != nil {
		return err
	}
	return v.commits.commit(ctx, sameSnapshots)
}

// sameSnapshots is an edit of nothing, for a commit that says something else.
func sameSnapshots(_ context.Context, _ tree.Store, snaps, _ store.Ref) (store.Ref, error) {
	return snaps, nil
}
