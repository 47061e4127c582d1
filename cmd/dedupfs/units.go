package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// sizeUnits are the letters behind a number of bytes.
const sizeUnits = "KMGTPE"

// parseSize reads a number of bytes as people write it: 4096, 64K, 1.5G, 8MiB.
func parseSize(s string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(s)), "B"), "I")
	unit := 1.0
	if n := len(number); n > 0 {
		if i := strings.IndexByte(sizeUnits, number[n-1]); i >= 0 {
			unit = math.Pow(1024, float64(i+1))
			number = number[:n-1]
		}
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f >= 0) || f*unit > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size; write a number with K, M, G or T, as in 20G", s)
	}
	return int64(f * unit), nil
}

// humanSize writes n bytes as parseSize reads them, with three digits or so.
func humanSize(n int64) string {
	f, unit := float64(n), -1
	for (f >= 1024 || f <= -1024) && unit < len(sizeUnits)-1 {
		f /= 1024
		unit++
	}
	switch {
	case unit < 0:
		return fmt.Sprintf("%d B", n)
	case math.Abs(f) < 10:
		return fmt.Sprintf("%.1f %ciB", f, sizeUnits[unit])
	default:
		return fmt.Sprintf("%.0f %ciB", f, sizeUnits[unit])
	}
}

// dayUnits are the units that time.ParseDuration does not know.
var dayUnits = map[byte]time.Duration{
	'd': 24 * time.Hour,
	'w': 7 * 24 * time.Hour,
	'y': 365 * 24 * time.Hour,
}

// parseDuration reads 90s, 1h30m, 2d, 3w and 1y12h. A number alone is seconds.
func parseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration; write a number with s, m, h, d, w or y, as in 10s", s)
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	var sum time.Duration
	rest := s
	for {
		i := strings.IndexAny(rest, "dwy")
		if i < 0 {
			break
		}
		n, err := strconv.ParseUint(rest[:i], 10, 16)
		if err != nil {
			return 0, bad
		}
		sum += time.Duration(n) * dayUnits[rest[i]]
		rest = rest[i+1:]
	}
	if rest == "" && s != "" {
		return sum, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, bad
	}
	return sum + d, nil
}

// humanDuration writes d in one or two units.
func humanDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}

// sizeFlag is a flag in bytes, or in bytes per second.
type sizeFlag int64

func (f *sizeFlag) Type() string { return "size" }

func (f *sizeFlag) String() string {
	if *f == 0 {
		return "0"
	}
	return strings.TrimSuffix(strings.ReplaceAll(humanSize(int64(*f)), " ", ""), "iB")
}

func (f *sizeFlag) Set(s string) error {
	n, err := parseSize(s)
	if err == nil {
		*f = sizeFlag(n)
	}
	return err
}

// durationFlag is a flag that is a length of time.
type durationFlag time.Duration

func (f *durationFlag) Type() string   { return "duration" }
func (f *durationFlag) String() string { return time.Duration(*f).String() }

func (f *durationFlag) Set(s string) error {
	d, err := parseDuration(s)
	if err == nil {
		*f = durationFlag(d)
	}
	return err
}

// escape makes a name of any bytes fit for a terminal: what is not printable is
// written as in Go, so that no name can move the cursor or forge a line.
func escape(name string) string {
	quoted := strconv.Quote(name)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
