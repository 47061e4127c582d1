package main

import (
	"testing"

	"github.com/dedupfs/dedupfs/fs"
)

func TestAutomaticFlag(t *testing.T) {
	for _, tc := range []struct {
		in, want string // want is "" for an error
		policy   fs.Policy
	}{
		{"none", "none", fs.Policy{}},
		{"last=0", "none", fs.Policy{}},
		{"all", "last=all", fs.Policy{Last: fs.AllOf}},
		{"default", "last=30,minutely=60,hourly=24,daily=30,monthly=12", fs.DefaultAutomatic},
		{"daily=7:yearly=all", "daily=7,yearly=all", fs.Policy{Daily: 7, Yearly: fs.AllOf}},
		{"weekly=2,last=1", "last=1,weekly=2", fs.Policy{Last: 1, Weekly: 2}},
		{"fortnightly=2", "", fs.Policy{}},
		{"daily", "", fs.Policy{}},
		{"daily=-3", "", fs.Policy{}},
	} {
		var f automaticFlag
		err := f.Set(tc.in)
		if tc.want == "" {
			if err == nil {
				t.Errorf("%q is taken for %s", tc.in, f.String())
			}
			continue
		}
		got := fs.Policy(f)
		if err != nil || f.String() != tc.want || got.Last != tc.policy.Last || got.Daily != tc.policy.Daily || got.Yearly != tc.policy.Yearly {
			t.Errorf("%q is taken for %s, %v; want %s", tc.in, f.String(), err, tc.want)
		}
	}
}
