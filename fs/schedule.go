package fs

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// scheduler makes a snapshot for each period of a schedule in which something has changed: one in the whole repository, however
// many machines follow the schedule. Its name is that of the period, so who comes later finds it, and of two that are
// made at once a merge keeps one.
type scheduler struct {
	v    *Volume
	last string // the period that has been dealt with

	stop context.CancelFunc
	done sync.WaitGroup
}

// scheduleTag marks what a schedule has made.
const scheduleTag = "auto"

// scheduled reports whether a schedule has made s.
func (s *Snapshot) scheduled() bool { return slices.Contains(s.Tags, scheduleTag) }

// lookAgain is how often a scheduler looks at the clock, which may jump, as the machine may have slept.
const lookAgain = time.Minute

func (s *scheduler) start() {
	every := s.v.opt.SnapshotEvery
	if every <= 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.done.Go(func() {
		for ctx.Err() == nil {
			if err := s.tick(ctx); err != nil && ctx.Err() == nil {
				s.v.opt.Logger.Warn("the scheduled snapshot is tried again in a minute", "err", err)
			}
			sleep(ctx, min(lookAgain, s.wait(s.v.opt.Now())))
		}
	})
}

func (s *scheduler) close() {
	if s.stop != nil {
		s.stop()
	}
	s.done.Wait()
}

// wait returns the time until the next period has begun. Machines come one after the other, so that most find the work done.
func (s *scheduler) wait(now time.Time) time.Duration {
	every := s.v.opt.SnapshotEvery
	stagger := min(every/4, 20*time.Second)
	share := time.Duration(binary.BigEndian.Uint16(s.v.me[:])) * stagger >> 16
	return max(now.Truncate(every).Add(every).Add(share).Sub(now), time.Millisecond)
}

// errUnchanged says that there is nothing that a scheduled snapshot would add.
var errUnchanged = errors.New("nothing has changed since the last snapshot")

// tick makes the snapshot of the present period unless there is one, or nothing has changed since the newest.
func (s *scheduler) tick(ctx context.Context) error {
	v := s.v
	name := scheduleTag + "-" + v.opt.Now().UTC().Truncate(v.opt.SnapshotEvery).Format(snapshotTimeName)
	if name == s.last {
		return nil
	}
	if !v.follower.alone() {
		_ = v.follower.poll(ctx, besideUploads) // another may have made it; off line there is nobody to ask
	}
	_, err := v.nameState(ctx, Snapshot{Name: name, Tags: []string{scheduleTag}}, func(all []Snapshot, root store.Ref) error {
		for i, other := range all {
			newest := i == len(all)-1
			if other.Name == name || newest && other.Root.ID == root.ID {
				return errUnchanged
			}
		}
		if len(all) == 0 && root.IsZero() {
			return errUnchanged
		}
		return nil
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return err
	}
	s.last = name
	return nil
}
