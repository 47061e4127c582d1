package experiment

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Sets returns the names of the data sets that there are results of.
func Sets(results []*Result) (sets []string) {
	for _, r := range results {
		if !slices.Contains(sets, r.Set) {
			sets = append(sets, r.Set)
		}
	}
	return sets
}

// An Order says by what configurations are ranked.
type Order func(a, b *Result) int

// ByRatio puts first what stores least.
func ByRatio(a, b *Result) int { return cmp.Compare(a.Stored, b.Stored) }

// ByTime puts first what takes least time, with the pauses.
func ByTime(a, b *Result) int { return cmp.Compare(a.Sum.Seconds, b.Sum.Seconds) }

// ByCPU puts first what takes least processor time.
func ByCPU(a, b *Result) int { return cmp.Compare(a.Sum.CPU, b.Sum.CPU) }

// Rank returns the results of one data set in the given order.
func Rank(results []*Result, set string, by Order) (ranked []*Result) {
	for _, r := range results {
		if r.Set == set {
			ranked = append(ranked, r)
		}
	}
	slices.SortStableFunc(ranked, by)
	return ranked
}

// columns are those of results.csv.
var columns = []string{"set", "config", "version", "files", "bytes", "chunks", "new_chunks", "new_bytes", "multichunks", "multichunk_bytes", "index_bytes",
	"stored_bytes", "all_bytes", "all_stored_bytes", "temporal_deduplication_ratio", "metadata_overhead", "chunking_cpu_seconds", "cpu_seconds", "seconds", "cpu_share", "peak_memory_bytes"}

// AppendCSV appends a line for each version of r, with what all versions up to it take together.
func (r *Result) AppendCSV(w *csv.Writer) error {
	var sum Account
	for i := range r.Versions {
		a := &r.Versions[i]
		sum.plus(a)
		line := []string{r.Set, r.Config, strconv.Itoa(i)}
		for _, n := range []int64{a.Files, a.Bytes, a.Chunks, a.NewChunks, a.NewBytes, a.Multichunks, a.Multichunk, a.Index, a.Stored(), sum.Bytes, sum.Stored()} {
			line = append(line, strconv.FormatInt(n, 10))
		}
		for _, f := range []float64{float64(sum.Bytes) / float64(max(1, sum.Stored())), float64(sum.Index) / float64(max(1, sum.Stored())), a.Cutting, a.CPU, a.Seconds, a.CPU / max(a.Seconds, 1e-9)} {
			line = append(line, strconv.FormatFloat(f, 'g', 5, 64))
		}
		if err := w.Write(append(line, strconv.FormatInt(r.Memory, 10))); err != nil {
			return err
		}
	}
	return nil
}

// WriteReport writes results.csv, results.json, charts, and index.html, which holds all of it and needs no other file, into dir.
func WriteReport(dir string, results []*Result) error {
	var table bytes.Buffer
	w := csv.NewWriter(&table)
	err := w.Write(columns)
	for _, r := range results {
		err = errors.Join(err, r.AppendCSV(w))
	}
	w.Flush()
	if err = errors.Join(err, w.Error()); err != nil {
		return err
	}
	text, err := json.Marshal(results)
	if err != nil {
		return err
	}
	charts, err := ChunkingCharts(results)
	if err != nil {
		return err
	}
	page, err := reportPage(results, charts)
	if err != nil {
		return err
	}
	files := map[string][]byte{"results.csv": table.Bytes(), "results.json": text, "index.html": page}
	for _, c := range charts {
		files[c.Name+".svg"] = c.SVG
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// ranking is a table of the page.
type ranking struct {
	Set, By string
	Results []*Result
}

func reportPage(results []*Result, charts []Chart) ([]byte, error) {
	page := struct {
		Charts   []Chart
		Rankings []ranking
	}{Charts: charts}
	for _, set := range Sets(results) {
		for _, by := range []struct {
			name  string
			order Order
		}{{"bytes stored", ByRatio}, {"time", ByTime}, {"processor time", ByCPU}} {
			page.Rankings = append(page.Rankings, ranking{set, by.name, Rank(results, set, by.order)})
		}
	}
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, page)
	return out.Bytes(), err
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"svg": func(c Chart) template.HTML { return template.HTML(c.SVG) }, //nolint:gosec // made here, of numbers and escaped names
	"mb":  func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/1e6) },
	"inc": func(i int) int { return i + 1 },
	"pct": func(f float64) string { return fmt.Sprintf("%.1f", 100*f) },
}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>dedupfs experiment chunking</title>
<style>
body{font:14px/1.4 sans-serif;max-width:76em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}
td:nth-child(2),th:nth-child(2){text-align:left;font-family:monospace}svg{max-width:100%;height:auto}summary{cursor:pointer;font-weight:bold;margin:.5em 0}
</style>
<h1>Chunking efficiency</h1>
<p>What each configuration makes of the versions of each data set. The ratio is the bytes of all versions for each byte stored; metadata are lists of chunks and files.</p>
{{range .Charts}}<figure>{{svg .}}<figcaption>{{.Title}}</figcaption></figure>
{{end}}{{range .Rankings}}<details><summary>{{.Set}}, by {{.By}}</summary>
<table><tr><th></th><th>configuration</th><th>stored MB</th><th>ratio</th><th>metadata %</th><th>new chunks</th><th>multichunks</th><th>s</th><th>processor s</th><th>cutting s</th><th>memory MB</th></tr>
{{range $i, $r := .Results}}<tr><td>{{inc $i}}</td><td>{{$r.Config}}</td><td>{{mb $r.Stored}}</td><td>{{printf "%.2f" $r.Ratio}}</td><td>{{pct $r.Overhead}}</td><td>{{$r.Sum.NewChunks}}</td><td>{{$r.Sum.Multichunks}}</td><td>{{printf "%.2f" $r.Sum.Seconds}}</td><td>{{printf "%.2f" $r.Sum.CPU}}</td><td>{{printf "%.2f" $r.Sum.Cutting}}</td><td>{{mb $r.Memory}}</td></tr>
{{end}}</table></details>
{{end}}</html>
`))
