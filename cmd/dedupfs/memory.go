package main

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// mappedMemory is what of --memory is left to what the garbage collector does not know of: the program, and the mapped
	// files of the local database.
	mappedMemory = 56 << 20 // bytes

	// leastRoom is the part of the live heap that the heap may at least grow by before it is collected. With less the
	// collector takes more of the processor than all else.
	leastRoom = 1.0 / 4

	otherMemory = 16 << 20 // bytes of the runtime's own that count for the limit, about
	tuneEvery   = time.Second
)

// tuneMemory makes the garbage collector keep to --memory: it gets busier as the limit comes near, and never lets the heap
// double. While what is needed leaves too little room, as after a million small writes at random, the limit gives way.
func (a *app) tuneMemory() {
	debug.SetGCPercent(50)
	memory := int64(a.g.memory)
	limit := max(memory-mappedMemory, memory/2)
	debug.SetMemoryLimit(limit)
	go func() {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for now := limit; ; time.Sleep(tuneEvery) {
			metrics.Read(live)
			if want := heapLimit(limit, int64(live[0].Value.Uint64())); want != now {
				now = want
				debug.SetMemoryLimit(now)
			}
		}
	}()
}

// heapLimit returns the limit for the collector with so many bytes found to be live.
func heapLimit(limit, live int64) int64 {
	return max(limit, live+int64(leastRoom*float64(live))+otherMemory)
}
