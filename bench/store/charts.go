package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"

	"github.com/dedupfs/dedupfs/experiment"
)

// drawCharts draws what lies on the remote after each version of each data set, and after the last of all, into dir.
func drawCharts(dir string, all []*result) error {
	if dir == "" || len(all) == 0 {
		return nil
	}
	var sets []string
	for _, r := range all {
		if !slices.Contains(sets, r.Set) {
			sets = append(sets, r.Set)
		}
	}
	charts := []chart{lastVersions(sets, all)}
	for _, set := range sets {
		charts = append(charts, versionsOf(set, all))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range charts {
		drawn, err := experiment.Draw(c.name, c.axes, c.series)
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, c.name+".svg"), drawn.SVG, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// chart is what is to be drawn.
type chart struct {
	name   string
	axes   experiment.Axes
	series []experiment.Series
}

// add adds a point to the series of a program.
func (c *chart) add(program string, p experiment.Point) {
	i := slices.IndexFunc(c.series, func(s experiment.Series) bool { return s.Name == program })
	if i < 0 {
		i = len(c.series)
		c.series = append(c.series, experiment.Series{Name: program})
	}
	c.series[i].Points = append(c.series[i].Points, p)
}

func lastVersions(sets []string, all []*result) chart {
	c := chart{name: "storage", axes: experiment.Axes{Title: "MB on the remote after the last version", Y: "MB", Zero: true}}
	for _, r := range all {
		c.add(r.Program, experiment.Point{X: float64(slices.Index(sets, r.Set)), Y: mb(r.last())})
	}
	for i := range c.series {
		c.series[i].Dots = true
	}
	for i, set := range sets {
		c.axes.Ticks = append(c.axes.Ticks, plot.Tick{Value: float64(i), Label: set})
	}
	return c
}

func versionsOf(set string, all []*result) chart {
	c := chart{name: "storage-" + set, axes: experiment.Axes{Title: set + ": MB on the remote after each version", X: "version", Y: "MB", Zero: true}}
	for _, r := range all {
		if r.Set != set {
			continue
		}
		for i, n := range r.Remote {
			c.add(r.Program, experiment.Point{X: float64(i + 1), Y: mb(n)})
		}
	}
	return c
}
