package main

import (
	"fmt"
	"strings"

	"github.com/dedupfs/dedupfs/fs"
)

// automaticFlag says how automatic states thin out: rules as last=30,hourly=24, or default, all or none.
type automaticFlag fs.Policy

func (f *automaticFlag) Type() string { return "rules" }

// rules are the rules that can be given, by their names.
func (f *automaticFlag) rules() []automaticRule {
	return []automaticRule{{"last", &f.Last}, {"minutely", &f.Minutely}, {"hourly", &f.Hourly}, {"daily", &f.Daily}, {"weekly", &f.Weekly},
		{"monthly", &f.Monthly}, {"yearly", &f.Yearly}}
}

type automaticRule struct {
	name string
	n    *int
}

func (f *automaticFlag) String() string {
	var out []string
	for _, r := range f.rules() {
		if *r.n != 0 {
			out = append(out, r.name+"="+(*countFlag)(r.n).String())
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ",")
}

// Set also takes rules that are separated by colons, as in -o.
func (f *automaticFlag) Set(s string) error {
	switch s {
	case "none":
		*f = automaticFlag{}
		return nil
	case "all":
		*f = automaticFlag{Last: fs.AllOf}
		return nil
	case "default":
		*f = automaticFlag(fs.DefaultAutomatic)
		return nil
	}
	var p automaticFlag
	for _, part := range strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ':' }) {
		name, n, _ := strings.Cut(part, "=")
		known := false
		for _, r := range p.rules() {
			if r.name != name {
				continue
			}
			known = true
			if err := (*countFlag)(r.n).Set(n); err != nil {
				return err
			}
		}
		if !known {
			return fmt.Errorf("%q is no rule; write rules as last=30,hourly=24,daily=30, or default, all or none", part)
		}
	}
	*f = p
	return nil
}
