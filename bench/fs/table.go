package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// table collects values by row and subject.
type table struct {
	rows     []*row
	subjects []string
}

// row is what one step of a workload has given, for every subject in every round.
type row struct {
	name, unit string
	values     map[string][]float64
}

// lessIsBetter are units of which one wants few.
var lessIsBetter = []string{"s", "MiB"}

func (t *table) add(subject, name, unit string, value float64) {
	if !slices.Contains(t.subjects, subject) {
		t.subjects = append(t.subjects, subject)
	}
	at := slices.IndexFunc(t.rows, func(r *row) bool { return r.name == name })
	if at < 0 {
		at = len(t.rows)
		t.rows = append(t.rows, &row{name: name, unit: unit, values: map[string][]float64{}})
	}
	r := t.rows[at]
	r.values[subject] = append(r.values[subject], value)
}

// median returns the middle of values, or the mean of the two in the middle.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return 0
	}
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// ratio returns how many times as good as base value is.
func ratio(unit string, value, base float64) float64 {
	if slices.Contains(lessIsBetter, unit) {
		value, base = base, value
	}
	return value / base
}

// String shows medians, and how each compares with the native file system (1.00 is as good).
func (t *table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "step\t%s\t\n", strings.Join(t.subjects, "\t"))
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s, %s\t", r.name, r.unit)
		base := median(r.values["native"])
		for _, s := range t.subjects {
			fmt.Fprintf(w, "%s\t", cell(r, s, base))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

func cell(r *row, subject string, base float64) string {
	values := r.values[subject]
	switch value := median(values); {
	case len(values) == 0:
		return "-"
	case base == 0 || subject == "native":
		return number(value)
	default:
		return fmt.Sprintf("%s (%.2f)", number(value), ratio(r.unit, value, base))
	}
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
