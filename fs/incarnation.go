package fs

import (
	"context"
	"errors"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// ErrCopied says that this client's history on the remote has commits that are not from this cache directory: it was copied, or put
// back from a backup, and what it was as a client has gone on elsewhere. Opening it again makes it a client of its own.
var ErrCopied = errors.New("another copy of this cache directory has published too; mount it again to go on as a client of its own")

// reincarnate makes this client go on as a new incarnation, with its own history and inode numbers. What the old one has
// published, as far as it is known here, counts as seen; correct, unless nil, may alter that.
func (v *Volume) reincarnate(ctx context.Context, correct func(history)) error {
	st := v.ca.State()
	position := v.position()
	if correct != nil {
		correct(position)
	}
	if err := v.ca.UpdateState(func(s *State) { s.Intent = store.SealedCommit{} }); err != nil {
		return err
	}
	if err := v.member.prepare(ctx, position); err != nil {
		return err
	}
	v.opt.Logger.Warn("going on as a new incarnation", "client", st.Client, "from", st.Incarnation, "to", v.ca.State().Incarnation)
	return v.member.register(ctx)
}

// overtaken reports whether heads have more of this client's own history than it has published, or is about to.
func (v *Volume) overtaken(heads []store.Head) bool {
	st := v.ca.State()
	return slices.ContainsFunc(heads, func(h store.Head) bool {
		return h.Client == st.Client && h.Incarnation == st.Incarnation && h.Seq > st.Head.Seq && h != st.Intent.Head
	})
}

// stopPublishing keeps this process from publishing under an incarnation that lives elsewhere too, and makes the next one start
// another.
func (v *Volume) stopPublishing() error {
	v.commits.copied.Store(true)
	if err := v.ca.Unsettle(); err != nil {
		return errors.Join(ErrCopied, err)
	}
	return ErrCopied
}

// name is what people call this client: what it was renamed to, else what the options say.
func (v *Volume) name() string {
	if host := v.ca.State().Host; host != "" {
		return host
	}
	return v.opt.Host
}
