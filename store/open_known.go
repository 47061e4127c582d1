package store

import (
	"maps"
	"slices"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// What a repository is opened from lies on every machine that has opened it before. If one of these objects is damaged or lost on
// the remote, that machine goes on, and can put it again.

// isLeft reports whether the repository of o is what is left of on a storage that shows no whole repository object.
func (o *openObjects) isLeft(repositories, slots, keyrings map[seal.ID][]byte) bool {
	if o == nil || slices.ContainsFunc(slices.Collect(maps.Keys(repositories)), func(id seal.ID) bool { return id != seal.ID(o.id) }) {
		return false
	}
	for id := range slots {
		if o.slots[id] != nil {
			return true
		}
	}
	for id := range keyrings {
		if o.keyrings[id] != nil {
			return true
		}
	}
	return false
}

// takeKnown takes slots and keyrings that are damaged or lost from known. A keyring that is not there has been replaced, unless there
// is no other one. A slot that is not there may have been removed, which unlock finds in the keyrings.
func (o *openObjects) takeKnown(known *openObjects) {
	if known == nil || known.id != o.id {
		return
	}
	o.known, o.lent = known, map[seal.ID]bool{}
	if o.slots == nil {
		o.slots = map[seal.ID][]byte{}
	}
	for id, wire := range known.slots {
		if _, err := seal.ParseSlot(o.id, id, o.slots[id]); err != nil {
			o.slots[id], o.lent[id] = wire, true
		}
	}
	intact := false
	for id, wire := range o.keyrings {
		if seal.CheckKeyring(wire) == nil {
			intact = true
		} else if known.keyrings[id] != nil {
			o.keyrings[id], intact = known.keyrings[id], true
		}
	}
	if !intact {
		if o.keyrings == nil {
			o.keyrings = map[seal.ID][]byte{}
		}
		maps.Copy(o.keyrings, known.keyrings)
	}
}

// dropRemoved gives up the slots from known that are not lost but removed.
func (o *openObjects) dropRemoved(roster seal.Roster) {
	for id := range o.lent {
		if !isIn(roster, id) {
			delete(o.slots, id)
			delete(o.lent, id)
		}
	}
}

// isIn reports whether roster has a slot that was not removed.
func isIn(roster seal.Roster, id seal.ID) bool {
	return slices.ContainsFunc(roster.Slots, func(s seal.Listed) bool { return s.ID == id }) && !slices.Contains(roster.Removed, id)
}
