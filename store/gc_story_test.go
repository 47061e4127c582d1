package store

import (
	"errors"
	"testing"
	"time"
)

// A simStory is a schedule by hand for a rule that random steps break too seldom. It must end well with all rules, and badly with
// the one that it is about broken.
type simStory struct {
	name   string
	rules  collectRules
	faults simFaults
	play   func(w *simWorld, broken bool)
}

// quiet is a view in which nothing fails.
func quiet(w *simWorld) *simView { return &simView{r: &w.remote, after: -1} }

// behind is a view whose listings of one directory are behind.
func behind(w *simWorld, top string, lag time.Duration) *simView {
	v := quiet(w)
	v.lags = map[string]time.Duration{top: lag}
	return v
}

// put makes a file of one chunk.
func (c *simClient) put(name string, content int) { c.files[name] = []Ref{c.store(content)} }

// do runs steps of a client, which must work.
func (c *simClient) do(v *simView, steps ...func() error) {
	c.use(v)
	for _, step := range steps {
		c.judge(step())
	}
	c.checkNeeds()
}

// removed begins most stories: client 0 has published a chunk and removed it.
func removed(w *simWorld) (c0, c1 *simClient, sc *simCollector) {
	c0, c1, sc = w.clients[0], w.clients[1], w.collectors[0]
	c0.do(quiet(w), c0.readNotices)
	c0.put("a/0", 1)
	c0.do(quiet(w), c0.sync)
	c0.put("a/0", 2)
	c0.do(quiet(w), c0.sync)
	return c0, c1, sc
}

// mountedAgain begins some stories: client 0 has published a chunk and retired, and in its next life removed the chunk.
func mountedAgain(w *simWorld) (c0, c1 *simClient, sc *simCollector) {
	c0, c1, sc = w.clients[0], w.clients[1], w.collectors[0]
	c0.do(quiet(w), c0.readNotices)
	c0.put("a/0", 1)
	c0.do(quiet(w), c0.sync)
	c0.use(quiet(w))
	c0.retire()
	c0.do(quiet(w), c0.sync)
	c0.put("a/0", 2)
	c0.do(quiet(w), c0.sync)
	w.wait(2)
	return c0, c1, sc
}

// condemnFor publishes a notice, and client c acknowledges it.
func (sc *simCollector) condemnFor(c *simClient, evict ...Incarnation) {
	sc.use(quiet(sc.w))
	sc.condemnAnd(evict)
	c.do(quiet(sc.w), c.sync)
}

// wait lets settle times pass.
func (w *simWorld) wait(times int) { w.remote.now += time.Duration(times) * simSettle }

// finish ends the second phase.
func (sc *simCollector) finish(v *simView) {
	sc.use(v)
	sc.find()
	sc.remove()
}

func (sc *simCollector) lookBy(v *simView) {
	sc.use(v)
	sc.look()
}

// lateJoiner is a client that comes while everything it lists is behind: it sees the state before the removal.
func lateJoiner(w *simWorld, wait int, second func(w *simWorld) *simView) {
	c0, c1, sc := removed(w)
	sc.condemnFor(c0)
	w.remote.now += simSettle / 2
	old := quiet(w)
	old.lags = map[string]time.Duration{noticesDir: 3 * simSettle / 4, commitsDir: 3 * simSettle / 4}
	c1.do(old, c1.readNotices)
	c1.polled = []Head{firstHead(w, c0)}
	c1.do(old, c1.merge)
	sc.lookBy(behind(w, clientsDir, simSettle/4))
	w.wait(wait)
	sc.finish(second(w))
	c1.checkNeeds()
}

// firstHead is what client c has published first: what a listing may show that is behind.
func firstHead(w *simWorld, c *simClient) Head {
	for h := range w.commits {
		if h.chain() == c.chain() && h.Seq == 1 {
			return h
		}
	}
	panic("client has published nothing")
}

var simStories = []simStory{
	{
		name: "the settle time is not waited for", rules: collectRules{noSettling: true},
		play: func(w *simWorld, _ bool) {
			lateJoiner(w, 0, func(w *simWorld) *simView { return behind(w, clientsDir, simSettle/4) })
		},
	}, {
		name: "registrations are not listed again", rules: collectRules{noSecondLook: true},
		play: func(w *simWorld, _ bool) { lateJoiner(w, 2, quiet) },
	}, {
		name: "an error of a listing is ignored", rules: collectRules{ignoreErrors: true},
		play: func(w *simWorld, _ bool) {
			lateJoiner(w, 2, func(w *simWorld) *simView { return &simView{r: &w.remote, after: -1, fail: "list clients"} })
		},
	}, {
		name: "an error of a read is ignored", rules: collectRules{ignoreErrors: true},
		play: func(w *simWorld, _ bool) {
			c0, _, sc := removed(w)
			sc.use(&simView{r: &w.remote, after: -1, gets: 1})
			_, err := sc.c.Condemn(w.ctx)
			sc.judge(err)
			w.wait(1)
			c0.do(quiet(w), c0.sync)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(&simView{r: &w.remote, after: -1, gets: 1})
		},
	}, {
		name: "commits that somebody has not seen are not marked", rules: collectRules{noUnseen: true},
		play: func(w *simWorld, _ bool) {
			c0, c1, sc := w.clients[0], w.clients[1], w.collectors[0]
			c1.do(quiet(w), c1.readNotices)
			c1.put("b/0", 3)
			c1.do(quiet(w), c1.sync)
			c0.do(quiet(w), c0.sync)
			c0.put("a/0", 1)
			c0.do(quiet(w), c0.sync)
			c1.do(quiet(w), c1.poll, c1.merge) // c1 has a/0 now, and has not said so
			delete(c0.files, "a/0")
			c0.do(quiet(w), c0.sync)
			sc.condemnFor(c0)
			c1.do(quiet(w), c1.readNotices)
			commit := c1.next()
			c1.do(quiet(w), func() error { return c1.sealAgain(commit) }, c1.publish) // it acknowledges, and still does not
			w.wait(1)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			c1.checkNeeds()
		},
	}, {
		name: "registered after deduplicating", faults: simFaults{registersLate: true},
		play: func(w *simWorld, _ bool) {
			c0, c1, sc := removed(w)
			c1.do(quiet(w), c1.readNotices)
			c1.learnFrom(c0)
			sc.condemnFor(c0)
			w.wait(1)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			c1.put("c/0", 1)
			c1.checkNeeds()
		},
	}, {
		name: "notices read before registering",
		play: func(w *simWorld, broken bool) {
			c0, c1, sc := removed(w)
			if broken {
				c1.reg = &Registration{Client: c1.id}
				c1.registered = true
				c1.do(quiet(w), c1.readNotices)
				c1.registered = false
			}
			sc.condemnFor(c0)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.use(quiet(w))
			sc.find()
			c1.do(quiet(w), c1.register)
			if !broken {
				c1.do(quiet(w), c1.readNotices)
			}
			c1.learnFrom(c0)
			sc.remove()
			c1.put("c/0", 1)
			c1.checkNeeds()
		},
	}, {
		name: "notices forgotten at a restart", faults: simFaults{forgetsAcks: true},
		play: func(w *simWorld, _ bool) {
			c0, _, sc := removed(w)
			sc.condemnFor(c0)
			c0.restart()
			w.remote.now += simSettle / 4
			c0.do(behind(w, noticesDir, simSettle/2), c0.readNotices)
			c0.learnFrom(c0)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			c0.put("c/0", 1)
			c0.checkNeeds()
		},
	}, {
		name: "commits of an evicted incarnation merged", faults: simFaults{mergesEvicted: true},
		play: func(w *simWorld, _ bool) {
			c0, c1, sc := removed(w)
			c1.do(quiet(w), c1.readNotices)
			c1.learnFrom(c0)
			w.evicted[c1.chain()] = Head{Client: c1.id, Incarnation: c1.reg.Incarnation}
			sc.condemnFor(c0, c1.reg.Incarnation)
			w.wait(1)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			c1.put("c/0", 1)
			c1.do(quiet(w), c1.seal, c1.publish)
			w.wait(1)
			c0.do(quiet(w), c0.poll, c0.merge)
		},
	}, {
		name: "acknowledged before what is referred to is published", faults: simFaults{acksEarly: true},
		play: func(w *simWorld, _ bool) {
			c0, _, sc := removed(w)
			c0.learnFrom(c0)
			c0.put("c/0", 1)
			sc.condemnFor(c0)
			w.wait(1)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
		},
	}, {
		name: "held open and not said", faults: simFaults{hidesHeld: true}, play: openAndRemoved,
	}, {
		name: "what is held open is not marked", rules: collectRules{noHeld: true}, play: openAndRemoved,
	}, {
		name: "the passing of a history is not waited for", rules: collectRules{passesUnheard: true},
		play: func(w *simWorld, _ bool) {
			c0, c1, sc := mountedAgain(w)
			c1.do(quiet(w), c1.readNotices, c1.poll)
			sc.condemnFor(c0)
			for range 2 {
				w.wait(1)
				sc.lookBy(quiet(w))
				w.wait(2)
				sc.finish(quiet(w))
			}
			for range 3 {
				c1.do(quiet(w), c1.merge) // it had found the commits when it looked
			}
		},
	}, {
		name: "a condemned multichunk covers another", rules: collectRules{condemnedCovers: true}, play: coveredByCondemned,
	}, {
		name: "an answer in a full remote holds nothing", faults: simFaults{answersBare: true},
		play: func(w *simWorld, _ bool) {
			c0, _, sc := removed(w)
			w.wait(1)
			c0.put("b/0", 1) // found in what is garbage, and not published
			sc.use(quiet(w))
			sc.condemnAnd(nil)
			c0.do(quiet(w), c0.readNotices, c0.answer, c0.publish)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			c0.checkNeeds()
		},
	}, {
		name: "heads merged that were polled before a notice was read", faults: simFaults{keepsPolled: true},
		play: func(w *simWorld, _ bool) {
			c0, c1, sc := w.clients[0], w.clients[1], w.collectors[0]
			c0.do(quiet(w), c0.readNotices)
			c0.put("a/0", 1)
			c0.do(quiet(w), c0.sync)
			c1.do(quiet(w), c1.sync)
			c1.put("b/0", 3)
			c1.do(quiet(w), c1.sync)
			c0.do(quiet(w), c0.poll)
			c0.put("a/0", 2)
			c0.do(quiet(w), c0.upload, c0.seal, c0.publish)
			c1.do(quiet(w), c1.sync)
			w.wait(1)
			sc.condemnFor(c1)
			c0.do(quiet(w), c0.readNotices, c0.seal, c0.publish)
			for range 2 {
				w.wait(1)
				sc.lookBy(quiet(w))
				w.wait(2)
				sc.finish(quiet(w))
			}
			c0.do(quiet(w), c0.merge)
		},
	}, {
		name: "an ended incarnation left out of commits at once", faults: simFaults{prunesEarly: true},
		play: func(w *simWorld, _ bool) {
			c0, c1, sc := mountedAgain(w)
			sc.use(quiet(w))
			p, err := sc.c.plan(w.ctx, false)
			sc.judge(err)
			sc.judge(sc.slot.repo.putNotice(w.ctx, &Notice{Condemned: p.found.Garbage}))
			c0.do(quiet(w), c0.sync)
			w.wait(1)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			w.wait(2)
			sc.use(quiet(w))
			s, err := sc.c.survey(w.ctx)
			sc.judge(err)
			passing, _, err := sc.slot.repo.passing(w.ctx, s)
			sc.judge(err)
			sc.judge(sc.slot.repo.putNotice(w.ctx, &Notice{Passing: passing}))
			c0.do(quiet(w), c0.sync)
			c1.do(behind(w, noticesDir, simSettle/2), c1.readNotices, c1.poll)
			for range 3 {
				c1.do(quiet(w), c1.merge)
			}
		},
	}, {
		name: "a condemned multichunk stays in the index", faults: simFaults{keepsIndex: true},
		play: func(w *simWorld, _ bool) {
			c0, _, sc := removed(w)
			sc.condemnFor(c0)
			w.wait(1)
			sc.lookBy(quiet(w))
			w.wait(2)
			sc.finish(quiet(w))
			c0.put("c/0", 1)
			c0.checkNeeds()
		},
	},
}

// openAndRemoved is a file that is open while it is removed and collected.
func openAndRemoved(w *simWorld, _ bool) {
	c0, sc := w.clients[0], w.collectors[0]
	c0.do(quiet(w), c0.readNotices)
	c0.put("a/0", 1)
	c0.do(quiet(w), c0.sync)
	c0.held = c0.files["a/0"]
	c0.put("a/0", 2)
	c0.do(quiet(w), c0.sync)
	sc.condemnFor(c0)
	w.wait(1)
	sc.lookBy(quiet(w))
	w.wait(2)
	sc.finish(quiet(w))
}

// coveredByCondemned is a chunk whose copy was condemned before it was referred to again, by a collector that is slow to delete that.
func coveredByCondemned(w *simWorld, _ bool) {
	c0, slow, sc := w.clients[0], w.collectors[0], w.collectors[1]
	c0.do(quiet(w), c0.readNotices)
	c0.put("a/0", 1)
	c0.do(quiet(w), c0.sync)
	old := c0.files["a/0"][0].Hint.Multichunk
	slow.use(quiet(w))
	p, err := slow.c.plan(w.ctx, true)
	slow.judge(err)
	for _, q := range p.partial {
		if q.name == old {
			_, err = slow.c.regroup(w.ctx, p.m, []partial{q}, &RegroupOptions{}, &Regrouped{})
			slow.judge(err)
		}
	}
	copied := w.moved[len(w.moved)-1]
	c0.put("a/0", 2)
	c0.do(quiet(w), c0.sync)
	slow.use(quiet(w))
	slow.judge(slow.slot.repo.putNotice(w.ctx, &Notice{Condemned: []Name{copied}}))
	c0.do(quiet(w), c0.sync)
	w.wait(1)
	slow.lookBy(quiet(w))
	w.wait(2)
	slow.use(quiet(w))
	slow.find()
	sc.use(quiet(w))
	sc.judge(sc.slot.repo.putNotice(w.ctx, &Notice{Condemned: []Name{old}}))
	c0.put("a/1", 1) // by its index, before it knows
	c0.do(quiet(w), c0.sync)
	w.wait(1)
	sc.lookBy(quiet(w))
	w.wait(2)
	sc.finish(quiet(w))
	slow.use(quiet(w))
	slow.remove()
}

// learnFrom reads the tables of all that a client has ever announced, and puts into the index what it may.
func (c *simClient) learnFrom(other *simClient) {
	for name := range c.w.contents {
		kind, table, err := c.slot.repo.ReadTable(c.slot.repo.RemoteReader(c.w.ctx, name), -1, name)
		if err == nil && kind == KindData && !c.cond.Has(name) {
			c.addTable(name, table)
		}
	}
}

// TestCollectStories plays every story twice: with all rules, and without the one that it is about.
func TestCollectStories(t *testing.T) {
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range simStories {
		t.Run(s.name, func(t *testing.T) {
			w := newSimWorld(rig, 0, collectRules{}, simFaults{})
			s.play(w, false)
			if w.violation != "" {
				t.Errorf("with all rules: %s", w.violation)
			}
			w = newSimWorld(rig, 0, s.rules, s.faults)
			s.play(w, true)
			if w.violation == "" {
				t.Error("not noticed")
			}
		})
	}
}

// TestCollectKilled stops a collector at every single call of the remote. Whatever it leaves, nothing that is needed is gone, and the
// next one finishes.
func TestCollectKilled(t *testing.T) {
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	for calls := 1; ; calls++ {
		w := newSimWorld(rig, 0, collectRules{}, simFaults{})
		c0, _, sc := removed(w)
		view := &simView{r: &w.remote, after: -1, calls: calls, worked: calls%2 == 0}
		collect := func(view *simView) {
			sc.use(view)
			_, err := sc.c.Condemn(w.ctx)
			sc.judge(err)
			w.wait(1)
			c0.do(quiet(w), c0.sync)
			sc.lookBy(view)
			w.wait(2)
			sc.finish(view)
		}
		collect(view)
		c0.checkNeeds()
		if view.done <= calls {
			t.Logf("%d calls", view.done)
			if w.counts.deleted == 0 {
				t.Error("nothing was deleted")
			}
			return
		}
		sc.restart()
		collect(quiet(w))
		if w.checkEmpty(); w.violation != "" {
			t.Fatalf("stopped after %d calls: %s", calls, w.violation)
		}
	}
}

// TestCollectTooMuch sees that a repository is not emptied unasked.
func TestCollectTooMuch(t *testing.T) {
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	w := newSimWorld(rig, 0, collectRules{}, simFaults{})
	c0, _, sc := removed(w)
	delete(c0.files, "a/0")
	c0.do(quiet(w), c0.sync)
	sc.use(quiet(w))
	found, err := sc.slot.repo.NewCollector(nil).Condemn(w.ctx)
	if !errors.Is(err, ErrTooMuch) || len(found.Garbage) != 4 || found.Notice != nil {
		t.Errorf("Condemn = %+v, %v, want four multichunks and ErrTooMuch", found, err)
	}
	if notices, err := sc.slot.repo.Notices(w.ctx, nil); err != nil || len(notices) > 0 {
		t.Errorf("Notices = %v, %v, want none", notices, err)
	}
}
