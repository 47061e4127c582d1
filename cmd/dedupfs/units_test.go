package main

import (
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "64K": 64 << 10, "64k": 64 << 10, "8MiB": 8 << 20, "8MB": 8 << 20,
		"1.5G": 3 << 29, "2T": 2 << 40, " 20G ": 20 << 30,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "K", "-1", "1X", "NaN", "Inf", "1e30", "9999999T", "5G G"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestHumanSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 10 << 20: "10 MiB", 5 << 30: "5.0 GiB",
	} {
		if got := humanSize(n); got != want {
			t.Errorf("humanSize(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for in, want := range map[string]time.Duration{
		"90": 90 * time.Second, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "2d": 2 * day,
		"3w": 21 * day, "1y12h": 365*day + 12*time.Hour, "0": 0, "250ms": 250 * time.Millisecond,
	} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "-1s", "1.5d", "10x", "99999y"} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestHumanDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1500 * time.Microsecond: "2ms", 90 * time.Second: "1m30s", 3*time.Hour + 5*time.Minute: "3h5m",
		73 * time.Hour: "3d1h", 12345 * time.Millisecond: "12.3s",
	} {
		if got := humanDuration(d); got != want {
			t.Errorf("humanDuration(%d) = %q, want %q", d, got, want)
		}
	}
}

// The text of a default must be readable by the flag that prints it.
func TestSizeFlagRoundTrip(t *testing.T) {
	for _, n := range []sizeFlag{0, 1, 1000, 64 << 10, 200 << 20, 20 << 30} {
		var back sizeFlag
		if err := back.Set(n.String()); err != nil || back != n {
			t.Errorf("Set(%q) = %d, %v, want %d", n.String(), back, err, n)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain name":   "plain name",
		"grüße 日本":     "grüße 日本",
		"new\nline":    `new\nline`,
		"\x1b[31mred":  `\x1b[31mred`,
		"bad\xff\xfe":  `bad\xff\xfe`,
		`back\slash`:   `back\\slash`,
		"say \"hi\"":   `say "hi"`,
		"right\u202eo": `right\u202eo`,
	} {
		if got := escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
}
