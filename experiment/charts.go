package experiment

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Chart is a drawing.
type Chart struct {
	Name, Title string
	SVG         []byte
}

// A Series is a line of a chart.
type Series struct {
	Name   string
	Points []Point
	Dots   bool // points alone, without a line
}

// Point is a point of a Series.
type Point struct{ X, Y float64 }

// Axes say what a chart shows.
type Axes struct {
	Title, X, Y  string
	LogX, LogY   bool
	Ticks        []plot.Tick // on the X axis; nil chooses them
	Zero         bool        // the Y axis begins at 0
	LegendBottom bool
}

// legendRoom is what each line of a legend above the lines takes of the height.
const legendRoom = 0.06

const chartWidth, chartHeight = 16 * vg.Centimeter, 9 * vg.Centimeter

// Draw draws a chart.
func Draw(name string, a Axes, series []Series) (Chart, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = a.Title, a.X, a.Y
	for _, s := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		s.Font.Variant, s.Font.Size = "Sans", vg.Points(9)
	}
	p.Legend.Top, p.Legend.TextStyle.Font.Size = !a.LegendBottom, vg.Points(8)
	p.Add(plotter.NewGrid())
	for i, s := range series {
		if err := addSeries(p, i, s); err != nil {
			return Chart{}, fmt.Errorf("draw %s: %w", name, err)
		}
	}
	if a.LogX {
		makeLog(&p.X)
	}
	if a.LogY {
		makeLog(&p.Y)
	}
	if a.Ticks != nil {
		p.X.Tick.Marker = plot.ConstantTicks(a.Ticks)
	}
	if a.Zero {
		p.Y.Min = 0
	}
	if p.Legend.Left = true; !a.LegendBottom && !a.LogY {
		p.Y.Max += (p.Y.Max - p.Y.Min) * legendRoom * float64(len(series))
	}
	c := vgsvg.New(chartWidth, chartHeight)
	p.Draw(draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return Chart{}, err
	}
	// Whoever looks at it may have other fonts than the one that it was laid out with.
	svg := bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	if i := bytes.Index(svg, []byte("<svg")); i > 0 {
		svg = svg[i:] // the prolog is for files, and not needed there
	}
	return Chart{Name: name, Title: a.Title, SVG: svg}, nil
}

// makeLog gives an axis a logarithmic scale of whole decades, whose values must be positive.
func makeLog(a *plot.Axis) {
	a.Scale, a.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	a.Min, a.Max = math.Pow(10, math.Floor(math.Log10(a.Min))), math.Pow(10, math.Ceil(math.Log10(a.Max)))
	if a.Min == a.Max {
		a.Max *= 10
	}
}

func addSeries(p *plot.Plot, i int, s Series) error {
	xys := make(plotter.XYs, len(s.Points))
	for j, q := range s.Points {
		xys[j] = plotter.XY{X: q.X, Y: q.Y}
	}
	if len(xys) == 0 {
		return nil
	}
	dots, err := plotter.NewScatter(xys)
	if err != nil {
		return err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: seriesColor(i), Radius: vg.Points(2), Shape: plotutil.Shape(i)}
	if s.Dots {
		p.Add(dots)
		p.Legend.Add(s.Name, dots)
		return nil
	}
	line, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	line.LineStyle = draw.LineStyle{Color: seriesColor(i), Width: vg.Points(1.2), Dashes: plotutil.Dashes(i / 7)}
	p.Add(line)
	p.Legend.Add(s.Name, line)
	if len(xys) <= 30 {
		p.Add(dots)
	}
	return nil
}

func seriesColor(i int) color.Color { return plotutil.DarkColors[i%len(plotutil.DarkColors)] }

// ChunkingCharts draws the results of experiment 1: for each data set what is stored against processor time, and how the
// ratio grows over the versions for the best and for the thesis's choice.
func ChunkingCharts(results []*Result) (charts []Chart, err error) {
	for _, set := range Sets(results) {
		ranked := Rank(results, set, ByRatio)
		for _, draw := range []func(string, []*Result) (Chart, error){costChart, versionsChart} {
			c, err := draw(set, ranked)
			if err != nil {
				return nil, err
			}
			charts = append(charts, c)
		}
	}
	return charts, nil
}

// costChart draws each configuration as a point, those with equal chains of transformers alike.
func costChart(set string, ranked []*Result) (Chart, error) {
	var series []Series
	index := map[string]int{}
	for _, r := range ranked {
		if !strings.Contains(r.Config, "-0/") {
			continue // the same bytes and processor time
		}
		chain := r.Config[strings.LastIndexByte(r.Config, '/')+1:]
		i, ok := index[chain]
		if !ok {
			i = len(series)
			index[chain] = i
			series = append(series, Series{Name: chain, Dots: true})
		}
		series[i].Points = append(series[i].Points, Point{r.Sum.CPU, float64(r.Stored) / 1e6})
	}
	return Draw(fileName(set)+"-cost", Axes{Title: set + ": bytes and processor time of all versions", X: "processor seconds", Y: "MB stored", Zero: true, LegendBottom: true}, series)
}

// versionsChart draws the ratio over the versions.
func versionsChart(set string, ranked []*Result) (Chart, error) {
	show := []string{ranked[0].Config, ranked[len(ranked)-1].Config, "Custom-8192-0/ByKind/Zstdbetter-Cipher", "Custom-250-0/TTTD-4-Adler32/Gzip-Cipher", "Custom-250-0/TTTD-8-Adler32/Cipher", "Custom-250-0/Fixed-8/Cipher"}
	var series []Series
	drawn := map[string]bool{}
	for _, name := range show {
		for _, r := range ranked {
			if r.Config != name || drawn[name] {
				continue
			}
			drawn[name] = true
			s := Series{Name: name}
			var sum Account
			for i := range r.Versions {
				sum.plus(&r.Versions[i])
				s.Points = append(s.Points, Point{float64(i + 1), float64(sum.Bytes) / float64(max(1, sum.Stored()))})
			}
			series = append(series, s)
		}
	}
	return Draw(fileName(set)+"-ratio", Axes{Title: set + ": temporal deduplication ratio", X: "version", Y: "bytes of all versions / bytes stored", Zero: true}, series)
}

// fileName makes a file name of the name of a data set.
func fileName(set string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r < ' ' {
			return '_'
		}
		return r
	}, set)
}
