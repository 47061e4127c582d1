package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far a long operation is. A nil bar shows nothing.
type bar struct {
	p *progressbar.ProgressBar
}

// isTerminal reports whether what is written to w is seen on a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// newBar returns a bar for an operation on bytes, or nil if none should be
// drawn: bars are for terminals.
func (a *app) newBar(what string) *bar {
	if a.g.noProgress || a.g.quiet || !isTerminal(a.stderr) {
		return nil
	}
	return &bar{progressbar.NewOptions64(-1,
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWriter(a.stderr),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
	)}
}

// set says that done bytes of total are through. The total may change.
func (b *bar) set(done, total int64) {
	if b == nil {
		return
	}
	// One byte more than there is keeps the bar open: it cannot be reopened, and
	// what looks finished may get more to do.
	if total = max(total, done) + 1; total != b.p.GetMax64() {
		b.p.ChangeMax64(total)
	}
	_ = b.p.Set64(done)
}

// describe changes what is said before the bar.
func (b *bar) describe(format string, args ...any) {
	if b != nil {
		b.p.Describe(fmt.Sprintf(format, args...))
	}
}

// done removes the bar.
func (b *bar) done() {
	if b != nil {
		_ = b.p.Clear()
	}
}
