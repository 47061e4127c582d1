package experiment

import "time"

const maxrssUnit = 1 // bytes

var began = time.Now()

// threadTime returns the time on the wall: what a thread has used is not told.
func threadTime() time.Duration { return time.Since(began) }
