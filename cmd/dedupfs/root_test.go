package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestBindEnvironment(t *testing.T) {
	flags := func(args ...string) (*pflag.FlagSet, *app) {
		a := &app{}
		f := pflag.NewFlagSet("test", pflag.ContinueOnError)
		a.addGlobals(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		return f, a
	}
	env := map[string]string{
		"DEDUPFS_REPOSITORY": "from:env", "DEDUPFS_MEMORY": "64M", "DEDUPFS_NO_PROGRESS": "true",
		"DEDUPFS_PASSWORD_FILE": "/file",
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }

	f, a := flags()
	if err := bindEnvironment(f, lookup); err != nil {
		t.Fatal(err)
	}
	if a.g.repo != "from:env" || a.g.memory != 64<<20 || !a.g.noProgress || a.g.passwordFile != "/file" {
		t.Errorf("flags from the environment = %+v", a.g)
	}

	f, a = flags("--repo=from:flag", "--password-command=pass")
	if err := bindEnvironment(f, lookup); err != nil {
		t.Fatal(err)
	}
	if a.g.repo != "from:flag" || a.g.passwordFile != "" {
		t.Errorf("flags on the command line do not outweigh the environment: %+v", a.g)
	}

	env["DEDUPFS_MEMORY"] = "lots"
	f, _ = flags()
	if err := bindEnvironment(f, lookup); err == nil || !strings.Contains(err.Error(), "DEDUPFS_MEMORY") {
		t.Errorf("bindEnvironment of a bad value = %v, want an error that names the variable", err)
	}
}

// Every command says what it does and shows it, and every flag has a variable of its own.
func TestCommandsAreDescribed(t *testing.T) {
	root := (&app{}).rootCommand()
	commands := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		commands++
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: Short = %q", c.CommandPath(), c.Short)
		}
		if c != root && !c.HasSubCommands() && c.Args == nil {
			t.Errorf("%s takes any number of arguments", c.CommandPath())
		}
		if c != root && c.Runnable() && !c.Hidden && !strings.Contains(c.Example, "  dedupfs ") {
			t.Errorf("%s: Example = %q", c.CommandPath(), c.Example)
		}
		variables := map[string]string{}
		note := func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing", c.CommandPath(), f.Name)
			}
			v := variableOf(f.Name)
			if other, taken := variables[v]; taken && other != f.Name {
				t.Errorf("%s: --%s and --%s share %s", c.CommandPath(), f.Name, other, v)
			}
			variables[v] = f.Name
			if v == passwordVariable {
				t.Errorf("%s: --%s would put a password on the command line", c.CommandPath(), f.Name)
			}
		}
		c.LocalFlags().VisitAll(note)
		c.InheritedFlags().VisitAll(note)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	if commands < 20 {
		t.Errorf("%d commands, want at least 20", commands)
	}
}

func TestRunUsage(t *testing.T) {
	for _, args := range [][]string{{"nonsense"}, {"mount"}, {"ls"}, {"--nonsense"}, {"umount", "--timeout=soon"}, {"key", "nonsense"}} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), args, &stdout, &stderr); code != exitUsage {
			t.Errorf("run(%q) = %d, want %d", args, code, exitUsage)
		}
		if text := stderr.String(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "dedupfs: ") {
			t.Errorf("run(%q) says %q, want one line", args, text)
		}
	}
}
