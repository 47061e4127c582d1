package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// app is one run of the command: its streams, its global flags, its log.
type app struct {
	stdout, stderr io.Writer
	log            *slog.Logger
	logFile        *os.File // nil: the log goes to stderr

	g       globals
	mounts  bool    // the command serves a mount
	pace    pacer   // holds back what this process does
	keeper  *keeper // of the storage that was opened last
	started bool    // a command has begun: what fails from now on is not its usage
}

// globals are the flags that every command has.
type globals struct {
	repo            string
	repoFile        string
	passwordFile    string
	passwordCommand string
	cacheDir        string
	logFile         string
	json            bool
	quiet           bool
	verbose         int
	noProgress      bool
	limitUpload     rateFlag
	limitDownload   rateFlag
	cpuLimit        coresFlag
	nice            bool
	memory          sizeFlag // bytes
}

// defaultMemory keeps the daemon well under 300 MiB of resident memory.
const defaultMemory = 200 << 20

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr, log: slog.New(slog.DiscardHandler)}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.started {
		err = usageError("%w; see `%s --help`", err, root.Name())
	}
	if ctx.Err() != nil && err != nil {
		err = interrupted{err}
	}
	code, message := verdict(err)
	if message != "" {
		fmt.Fprintln(stderr, "dedupfs: "+message)
	}
	if a.logFile != nil {
		a.logFile.Close()
	}
	return code
}

func (a *app) rootCommand() *cobra.Command {
	pflag.CommandLine = pflag.NewFlagSet("", pflag.ContinueOnError) // without those of rclone's packages, which cobra would take in
	root := &cobra.Command{
		Use:   "dedupfs",
		Short: "A deduplicated, encrypted file system on any storage",
		Long: "dedupfs mounts a deduplicated, encrypted file system that lives on any storage rclone can talk to.\n\n" +
			"REPO is a place as rclone writes it: remote:path, /a/local/path or :sftp,host=example.org:path.\n" +
			"Every flag can be set by a variable too: --cache-size is DEDUPFS_CACHE_SIZE, --repo is DEDUPFS_REPOSITORY.",
		Args:              cobra.NoArgs,
		RunE:              showHelp,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error { return a.start(cmd) },
	}
	a.addGlobals(root.PersistentFlags())
	root.AddCommand(
		a.initCommand(),
		a.mountCommand(), a.umountCommand(), a.syncCommand(), a.statusCommand(), a.limitCommand(), a.cacheCommand(),
		a.snapshotCommand(), a.snapshotsCommand(), a.lsCommand(), a.catCommand(), a.findCommand(), a.diffCommand(), a.historyCommand(), a.restoreCommand(),
		a.conflictsCommand(), a.clientsCommand(),
		a.forgetCommand(), a.gcCommand(), a.checkCommand(), a.repairCommand(), a.keyCommand(),
		a.statsCommand(), a.duCommand(), a.analyzeCommand(), a.experimentCommand(), a.benchmarkCommand(),
		a.manCommand(), a.versionCommand(),
	)
	return root
}

// showHelp is what a command does that is only a group of others.
func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func (a *app) addGlobals(f *pflag.FlagSet) {
	a.g.memory = defaultMemory
	f.StringVarP(&a.g.repo, "repo", "r", "", "the `REPO`sitory, as rclone writes places")
	f.StringVar(&a.g.repoFile, "repository-file", "", "read REPO from this `FILE`")
	f.StringVarP(&a.g.passwordFile, "password-file", "p", "", "read the password from this `FILE`")
	f.StringVar(&a.g.passwordCommand, "password-command", "", "run this shell `COMMAND` and take what it prints as the password")
	f.StringVar(&a.g.cacheDir, "cache-dir", "", "`DIR` for local state, one directory per repository (default "+defaultCacheDir()+")")
	f.BoolVar(&a.g.json, "json", false, "print JSON")
	f.BoolVarP(&a.g.quiet, "quiet", "q", false, "print nothing but results and errors")
	f.CountVarP(&a.g.verbose, "verbose", "v", "log more; twice: log everything")
	f.BoolVar(&a.g.noProgress, "no-progress", false, "draw no progress bars")
	f.StringVar(&a.g.logFile, "log-file", "", "append the log to this `FILE`")
	a.addLimits(f)
	f.Var(&a.g.memory, "memory", "memory that the program should stay within")
}

// start runs before every command: flags from the environment, then the log.
func (a *app) start(cmd *cobra.Command) error {
	if err := bindEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
		return err
	}
	a.started = true
	if err := a.readRepoFile(); err != nil {
		return err
	}
	a.startLimits(cmd.Name() == "mount")
	return a.openLog()
}

// alternatives are flags of which one on the command line outweighs the
// variables of all.
var alternatives = [][]string{{"repo", "repository-file"}, {"password-file", "password-command"}}

// bindEnvironment sets each flag that is not on the command line from its
// variable, if there is one and it is not empty.
func bindEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	outweighed := map[string]bool{}
	for _, names := range alternatives {
		for _, name := range names {
			if flags.Changed(name) {
				for _, other := range names {
					outweighed[other] = true
				}
			}
		}
	}
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookup(variableOf(f.Name))
		if !ok || value == "" || f.Changed || outweighed[f.Name] || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = fmt.Errorf("%s: %w", variableOf(f.Name), err)
		}
	})
	return failed
}

// variableOf returns the variable that sets the flag of this name.
func variableOf(flag string) string {
	if flag == "repo" {
		flag = "repository"
	}
	return "DEDUPFS_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func (a *app) readRepoFile() error {
	if a.g.repoFile == "" {
		return nil
	}
	if a.g.repo != "" {
		return usageError("--repo and --repository-file exclude each other")
	}
	b, err := os.ReadFile(a.g.repoFile)
	if err != nil {
		return fmt.Errorf("read repository file: %w", err)
	}
	a.g.repo = string(dropNewline(b))
	return nil
}

// openLog makes the log that the flags ask for.
func (a *app) openLog() error {
	level := slog.LevelWarn
	switch {
	case a.g.verbose > 1:
		level = slog.LevelDebug
	case a.g.verbose == 1 || a.g.logFile != "":
		level = slog.LevelInfo
	case a.g.quiet:
		level = slog.LevelError
	}
	out := a.stderr
	if a.g.logFile != "" {
		f, err := os.OpenFile(a.g.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open log: %w", err)
		}
		a.logFile, out = f, f
	}
	a.log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(a.log)
	return nil
}

// say prints a message for people, unless they asked for quiet.
func (a *app) say(format string, args ...any) {
	if !a.g.quiet {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}
