package fusefs

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The kernel tells of any signal that comes while a program waits for an answer, and would pass on an EINTR even where the
// program has asked for calls to be restarted. On a local file system no call on a file ends so: programs with timers or children,
// and those under a debugger, do not expect it. So a request is given up only for a signal that means the end of the program, or
// its user's wish for it.

// interruption is what a call knows of signals to the program that asked.
type interruption struct {
	cancel <-chan struct{} // closed by go-fuse when there was the first signal
	thread uint32          // that asked, as this process numbers it; 0 if it cannot see it

	gaveUp atomic.Bool

	mu      sync.Mutex    // guards all below
	done    chan struct{} // closed when the request is given up; nil until somebody asks for it
	over    chan struct{} // closed when it has been answered; nil while done is
	isEnded bool
}

// signalsEvery is how often it is looked for more signals after the first, of which alone the kernel tells.
const signalsEvery = 100 * time.Millisecond

func (i *interruption) Done() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.done == nil {
		i.done, i.over = make(chan struct{}), make(chan struct{})
		if !i.isEnded {
			go i.await()
		}
	}
	return i.done
}

func (i *interruption) Err() error {
	if i.gaveUp.Load() {
		return context.Canceled
	}
	select {
	case <-i.cancel:
	default:
		return nil
	}
	if i.thread != 0 && !givesUp(i.thread) {
		return nil
	}
	i.gaveUp.Store(true)
	return context.Canceled
}

// await closes done when the request is given up. It returns when it has been answered.
func (i *interruption) await() {
	select {
	case <-i.cancel:
	case <-i.over:
		return
	}
	tick := time.NewTicker(signalsEvery)
	defer tick.Stop()
	for i.Err() == nil {
		select {
		case <-tick.C:
		case <-i.over:
			return
		}
	}
	close(i.done)
}

// ended says that the request is being answered.
func (i *interruption) ended() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.isEnded = true
	if i.over != nil {
		close(i.over)
	}
}
