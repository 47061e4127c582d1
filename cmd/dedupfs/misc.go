package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/dedupfs/dedupfs/store"
)

// printJSON prints v as indented JSON.
func (a *app) printJSON(v any) error {
	out := json.NewEncoder(a.stdout)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(v)
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of the program and of the formats it knows",
		Example: "  dedupfs version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := programVersion()
			if a.g.json {
				return a.printJSON(v)
			}
			_, err := fmt.Fprintf(a.stdout, "dedupfs %s\nformat %d\n%s %s/%s\n", v.Version, v.Format, v.Go, v.OS, v.Arch)
			return err
		},
	}
}

// version is what `version --json` prints.
type version struct {
	Version string `json:"version"` // of the module, or the commit it was built from
	Format  int    `json:"format"`  // of repositories, the newest that is known
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func programVersion() version {
	v := version{"unknown", store.Format, runtime.Version(), runtime.GOOS, runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	return v
}

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages into a directory",
		Example: "  dedupfs man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			fi, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			if !fi.IsDir() {
				return errors.New(args[0] + " is not a directory")
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Title: "DEDUPFS", Section: "1", Source: "dedupfs", Manual: "dedupfs"}, args[0])
		},
	}
}
