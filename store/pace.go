package store

import "context"

// A Pacer holds back what is done behind the back of whoever uses the volume, so that it takes no more of the machine than it may.
type Pacer interface {
	// Background is called between units of background work, such as chunks, and waits until the next may begin.
	Background(ctx context.Context) error

	// Long is Background for a unit that takes long. Unless there is an error the caller calls done at its end.
	Long(ctx context.Context) (done func(), err error)

	// Foreground is called before work that somebody waits for. It waits seldom and shortly.
	Foreground(ctx context.Context) error

	// Limited reports whether work is held back at all now.
	Limited() bool

	// Worker is called by each goroutine that does background work, and nothing else until it ends.
	Worker()
}

// SetPacer makes all that works on r ask p. It is called before anything else uses r.
func (r *Repository) SetPacer(p Pacer) { r.pacer = p }

// Pacer returns what background work asks; one that never waits unless another was set.
func (r *Repository) Pacer() Pacer {
	if r.pacer == nil {
		return unpaced{}
	}
	return r.pacer
}

type unpaced struct{}

func (unpaced) Background(ctx context.Context) error { return ctx.Err() }
func (unpaced) Foreground(ctx context.Context) error { return ctx.Err() }

func (unpaced) Long(ctx context.Context) (done func(), err error) { return func() {}, ctx.Err() }

func (unpaced) Limited() bool { return false }
func (unpaced) Worker()       {}
