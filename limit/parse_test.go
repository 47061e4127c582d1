package limit

import (
	"runtime"
	"strconv"
	"testing"
	"time"
)

func TestParseCores(t *testing.T) {
	for s, want := range map[string]float64{
		"30%": 0.3, "150 %": 1.5, "off": 0, "0": 0, "50%machine": 0.5 * float64(runtime.NumCPU()),
		"50% of the machine": 0.5 * float64(runtime.NumCPU()), "12.5%": 0.125,
	} {
		if got, err := ParseCores(s); err != nil || got != want {
			t.Errorf("ParseCores(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"30", "-5%", "x%", "30%y", "NaN%", "0.5%", "1e99%"} {
		if got, err := ParseCores(s); err == nil {
			t.Errorf("ParseCores(%q) = %v", s, got)
		}
	}
}

func number(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

func TestTimetable(t *testing.T) {
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 3, 1+day, hour, minute, 0, 0, time.UTC) } // a Sunday
	tests := []struct {
		text string
		when time.Time
		rate int64
		next time.Duration
	}{
		{"", at(0, 0, 0), 0, 0},
		{"off", at(0, 0, 0), 0, 0},
		{"500", at(3, 4, 5), 500, 0},
		{"08:00,100 20:00,off", at(2, 7, 59), 0, time.Minute},
		{"08:00,100 20:00,off", at(2, 8, 0), 100, 12 * time.Hour},
		{"20:00,off 08:00,100", at(6, 23, 0), 0, 9 * time.Hour},
		{"08:00,100 20:00,200", at(0, 1, 0), 200, 7 * time.Hour},
		{"Mon-08:00,100 Sat-00:00,off", at(0, 12, 0), 0, 20 * time.Hour},
		{"Mon-08:00,100 saturday-00:00,off", at(5, 12, 0), 100, 12 * time.Hour},
		{"Mon-08:00,100 Sat-00:00,off", at(6, 12, 0), 0, 44 * time.Hour},
	}
	for _, tt := range tests {
		table, err := ParseTimetable(tt.text, number)
		if err != nil {
			t.Errorf("ParseTimetable(%q): %v", tt.text, err)
			continue
		}
		if rate, next := table.At(tt.when), table.Next(tt.when); rate != tt.rate || next != tt.next {
			t.Errorf("%q at %v: %d for %v, want %d for %v", tt.text, tt.when, rate, next, tt.rate, tt.next)
		}
		again, err := ParseTimetable(table.String(), number)
		if err != nil || again.String() != table.String() {
			t.Errorf("%q is written %q, which reads %q, %v", tt.text, table, again, err)
		}
	}
	for _, s := range []string{"x", "08:00", "25:00,100", "Foo-08:00,100", "08:00,x", "08:00,1 08:00,2", "08:00,1 9"} {
		if _, err := ParseTimetable(s, number); err == nil {
			t.Errorf("ParseTimetable(%q) is no error", s)
		}
	}
}
