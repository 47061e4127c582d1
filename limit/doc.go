// Package limit keeps a process within limits: of processor time (CPU), of bytes per second by the time of day (Timetable), and
// in the background of the machine (Nice).
//
// It promises that the processor time of the whole process, measured, stays near the limit over any five seconds, whatever the
// work is and however long its units take, as long as they are short beside a second: CPU adapts its pauses, which the
// multichunk thesis (Heckel 2012) asked for as the dynamic write pause. It leaves to others what a unit of work is, and where
// to ask between two of them.
package limit
