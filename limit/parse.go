package limit

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// ParseCores reads a share of the processor: 30% of one core, 150% of one and a half, 50%machine of all that the machine has; off or 0
// is no limit.
func ParseCores(s string) (float64, error) {
	bad := fmt.Errorf("%q is not a share of the processor; write 30%% (of one core), 30%%machine (of all cores) or off", s)
	t := strings.ToLower(strings.ReplaceAll(s, " ", ""))
	if t == "off" || t == "0" || t == "" {
		return 0, nil
	}
	share, of, ok := strings.Cut(t, "%")
	n, err := strconv.ParseFloat(share, 64)
	if !ok || err != nil || !(n >= 0 && n <= 1e6) {
		return 0, bad
	}
	switch of {
	case "", "core", "ofonecore", "ofacore":
	case "machine", "ofmachine", "ofthemachine":
		n *= float64(runtime.NumCPU())
	default:
		return 0, bad
	}
	if n > 0 && n < 1 {
		return 0, errors.New("a limit below 1% of a core would stop all work; write 1% or more")
	}
	return n / 100, nil
}

// FormatCores is the inverse of ParseCores.
func FormatCores(cores float64) string {
	if cores == 0 {
		return "off"
	}
	return strconv.FormatFloat(100*cores, 'f', -1, 64) + "%"
}

// A Timetable is a limit in bytes per second that depends on the time of the week. The zero value is no limit.
type Timetable struct {
	text  string
	rules []rule // sorted by start
}

// rule holds from its start until that of the next, or of the first in the week after.
type rule struct {
	start time.Duration // since Sunday 0:00
	rate  int64         // bytes per second; 0 is no limit
}

const week = 7 * 24 * time.Hour

var days = map[string]int{"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}

// ParseTimetable reads a rate, off, or a timetable as rclone has it: "08:00,512K 19:00,10M 23:00,off", and with days
// "Mon-08:00,512K Sat-00:00,off". Times without a day hold every day. size reads a number of bytes.
func ParseTimetable(s string, size func(string) (int64, error)) (Timetable, error) {
	t := Timetable{text: strings.Join(strings.Fields(s), " ")}
	fields := strings.Fields(s)
	if len(fields) == 0 {
		return t, nil
	}
	if len(fields) == 1 && !strings.Contains(s, ",") {
		rate, err := parseRate(fields[0], size)
		t.rules = []rule{{0, rate}}
		return t, err
	}
	for _, f := range fields {
		rules, err := parseRules(f, size)
		if err != nil {
			return Timetable{}, err
		}
		t.rules = append(t.rules, rules...)
	}
	sortRules(t.rules)
	for i := range t.rules[1:] {
		if t.rules[i].start == t.rules[i+1].start {
			return Timetable{}, fmt.Errorf("timetable %q has two limits for one time", s)
		}
	}
	return t, nil
}

func sortRules(rules []rule) {
	for i := range rules {
		for j := i; j > 0 && rules[j].start < rules[j-1].start; j-- {
			rules[j], rules[j-1] = rules[j-1], rules[j]
		}
	}
}

func parseRate(s string, size func(string) (int64, error)) (int64, error) {
	if strings.EqualFold(s, "off") {
		return 0, nil
	}
	n, err := size(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate; write 512K, off, or a timetable as in \"08:00,512K 19:00,off\"", s)
	}
	return n, nil
}

// parseRules reads one entry of a timetable, which stands for each day if it names none.
func parseRules(s string, size func(string) (int64, error)) ([]rule, error) {
	bad := fmt.Errorf("%q is no entry of a timetable; write HH:MM,RATE or DAY-HH:MM,RATE, as in Mon-08:00,512K", s)
	when, what, ok := strings.Cut(s, ",")
	if !ok {
		return nil, bad
	}
	rate, err := parseRate(what, size)
	if err != nil {
		return nil, err
	}
	from, to := 0, 6
	if day, clock, named := strings.Cut(when, "-"); named {
		d, known := days[strings.ToLower(day)[:min(3, len(day))]]
		if !known {
			return nil, bad
		}
		from, to, when = d, d, clock
	}
	clock, err := time.Parse("15:04", when)
	if err != nil {
		return nil, bad
	}
	var rules []rule
	for d := from; d <= to; d++ {
		at := time.Duration(d)*24*time.Hour + time.Duration(clock.Hour())*time.Hour + time.Duration(clock.Minute())*time.Minute
		rules = append(rules, rule{at, rate})
	}
	return rules, nil
}

// String returns t as ParseTimetable reads it; "off" if it is no limit.
func (t Timetable) String() string {
	if t.text == "" || t.text == "0" {
		return "off"
	}
	return t.text
}

// At returns the limit at a time, by the clock of its location, in bytes per second; 0 is none.
func (t Timetable) At(now time.Time) int64 {
	if len(t.rules) == 0 {
		return 0
	}
	since := sinceSunday(now)
	rate := t.rules[len(t.rules)-1].rate // of last week
	for _, r := range t.rules {
		if r.start <= since {
			rate = r.rate
		}
	}
	return rate
}

// Next returns how long the limit at a time holds at least; 0 if it always does.
func (t Timetable) Next(now time.Time) time.Duration {
	if len(t.rules) < 2 {
		return 0
	}
	since := sinceSunday(now)
	for _, r := range t.rules {
		if r.start > since {
			return r.start - since
		}
	}
	return week - since + t.rules[0].start
}

func sinceSunday(t time.Time) time.Duration {
	return time.Duration(t.Weekday())*24*time.Hour + time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute +
		time.Duration(t.Second())*time.Second + time.Duration(t.Nanosecond())
}
