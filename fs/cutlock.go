package fs

import "sync"

// cutLock is held shared by who changes something, and exclusively by a cut. It can also hold changes back for longer, while
// commits are made.
type cutLock struct {
	gate sync.RWMutex // held shared by who changes something, exclusively during a pause
	mu   sync.RWMutex
}

// RLock begins a change.
func (l *cutLock) RLock() {
	l.gate.RLock()
	l.mu.RLock()
}

// RUnlock ends a change.
func (l *cutLock) RUnlock() {
	l.mu.RUnlock()
	l.gate.RUnlock()
}

// Lock begins a cut.
func (l *cutLock) Lock() { l.mu.Lock() }

// Unlock ends a cut.
func (l *cutLock) Unlock() { l.mu.Unlock() }

// pause waits for the changes under way and holds back others until resume. Whoever calls it has what a change may wait for.
func (l *cutLock) pause() { l.gate.Lock() }

func (l *cutLock) resume() { l.gate.Unlock() }
