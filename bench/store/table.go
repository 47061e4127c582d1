package main

import (
	"fmt"
	"math"
	"strings"
)

func mb(n int64) float64 { return float64(n) / 1e6 }

// table shows results in Markdown: what each program needed, how much of the best peer's bytes dedupfs needs, and where
// those are.
func table(all []*result) string {
	var b strings.Builder
	fmt.Fprintln(&b, "| set | program | plain MB | stored MB | CPU s | memory MB | restore s |\n|---|---|---|---|---|---|---|")
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %s | %.0f | %.2f | %.1f | %.0f | %.1f |\n",
			r.Set, r.Program, mb(r.Plain), mb(r.last()), r.CPU, mb(r.Memory), r.Restore)
	}
	fmt.Fprintln(&b, "\n| set | chunks | of MB | in groups | tables | padding | nodes | tables | padding | commits | keys |\n|---|---|---|---|---|---|---|---|---|---|---|")
	for _, r := range all {
		if p := r.Parts; p != nil {
			fmt.Fprintf(&b, "| %s | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", r.Set, p.Data.Chunks, mb(p.Data.Plain),
				mb(p.Data.Groups), mb(p.Data.Tables), mb(p.Data.padding()),
				mb(p.Nodes.Groups), mb(p.Nodes.Tables), mb(p.Nodes.padding()), mb(p.Commits.Bytes), mb(p.Keys.Bytes))
		}
	}
	if ratios := ratios(all); len(ratios) > 0 {
		fmt.Fprintf(&b, "\nof the best peer's bytes: %.3f in the geometric mean of %d sets\n", geometricMean(ratios), len(ratios))
	}
	return b.String()
}

// ratios returns, for each data set, our bytes over those of the best peer.
func ratios(all []*result) []float64 {
	ours, best := map[string]float64{}, map[string]float64{}
	for _, r := range all {
		n := float64(r.last())
		if r.Program == (dedupfs{}).name() {
			ours[r.Set] = n
		} else if least, ok := best[r.Set]; !ok || n < least {
			best[r.Set] = n
		}
	}
	var rs []float64
	for set, n := range best {
		if m, ok := ours[set]; ok {
			rs = append(rs, m/n)
		}
	}
	return rs
}

func geometricMean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}
