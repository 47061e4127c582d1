package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/store"
)

func (a *app) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Manage the passwords of a repository",
		Long: "A repository is opened by any of its key slots; each has a password of its own, or a key file: any file that is given as\n" +
			"--password-file, of whose content one newline at the end does not count. The commands here need one of these passwords.",
		Example: "  head -c 32 /dev/urandom | base64 >backup.key\n" +
			"  dedupfs key add --name backup --new-password-file backup.key",
		Args: cobra.NoArgs,
		RunE: showHelp,
	}
	cmd.AddCommand(a.keyListCommand(), a.keyAddCommand(), a.keyRemoveCommand(), a.keyPasswdCommand(), a.keyRecoveryCommand(), a.keyRotateCommand())
	return cmd
}

func (a *app) keyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the key slots",
		Example: "  dedupfs key list --repo gdrive:home",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withRepository(cmd.Context(), func(r *store.Repository) error {
				slots, err := r.Slots(cmd.Context())
				if err != nil {
					return err
				}
				return a.printSlots(slots)
			})
		},
	}
}

// slotJSON is how --json shows a key slot.
type slotJSON struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Recovery bool      `json:"recovery"`
	Current  bool      `json:"current"` // opened by the password in use
	Removed  bool      `json:"removed"` // but the storage has refused to delete it
}

func (a *app) printSlots(slots []store.Slot) error {
	if a.g.json {
		list := []slotJSON{}
		for _, s := range slots {
			list = append(list, slotJSON{s.ID, s.Name, s.Created, s.Recovery, s.Current, s.Removed})
		}
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\tID\tNAME\tKIND\tCREATED")
	for _, s := range slots {
		mark, kind := "", "password"
		if s.Current {
			mark = "*"
		}
		switch {
		case s.Removed:
			kind = "removed, but the storage refused to delete it"
		case s.Recovery:
			kind = "recovery key"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", mark, s.ID, escape(s.Name), kind, s.Created.Local().Format(time.DateTime))
	}
	return w.Flush()
}

// newPassword is where the password of a new or changed slot comes from.
func (a *app) newPassword(cmd *cobra.Command) *passwordSource {
	p := &passwordSource{variable: "DEDUPFS_NEW_PASSWORD", prompt: "New password: "}
	cmd.Flags().StringVar(&p.file, "new-password-file", "", "read the new password from this `FILE`")
	cmd.Flags().StringVar(&p.command, "new-password-command", "", "run this shell `COMMAND` and take what it prints as the new password")
	return p
}

func (a *app) keyAddCommand() *cobra.Command {
	var name string
	memory := defaultKDFMemory()
	cmd := &cobra.Command{
		Use:     "add",
		Short:   "Add a key slot with a password of its own",
		Example: "  dedupfs key add --repo gdrive:home --name laptop",
		Args:    cobra.NoArgs,
	}
	source := a.newPassword(cmd)
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the slot, for people")
	cmd.Flags().Var(&memory, "kdf-memory", kdfMemoryUsage)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withRepository(cmd.Context(), func(r *store.Repository) error {
			password, err := source.read(cmd.Context(), a, true)
			if err != nil {
				return err
			}
			slot, err := r.AddSlot(cmd.Context(), name, password, kdfOf(memory))
			if err != nil {
				return err
			}
			a.say("added key slot %s", slot.ID)
			return nil
		})
	}
	return cmd
}

func (a *app) keyRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "remove ID|NAME",
		Short:   "Remove a key slot, so that its password opens nothing any more",
		Example: "  dedupfs key remove --repo gdrive:home laptop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRepository(cmd.Context(), func(r *store.Repository) error {
				if err := r.RemoveSlot(cmd.Context(), args[0]); err != nil {
					return err
				}
				a.say("removed key slot %s", escape(args[0]))
				return nil
			})
		},
	}
}

func (a *app) keyPasswdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "passwd",
		Short:   "Change the password of the key slot in use",
		Example: "  dedupfs key passwd --repo gdrive:home",
		Args:    cobra.NoArgs,
	}
	source := a.newPassword(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withRepository(cmd.Context(), func(r *store.Repository) error {
			password, err := source.read(cmd.Context(), a, true)
			if err != nil {
				return err
			}
			if err := r.ChangePassword(cmd.Context(), password); err != nil {
				return err
			}
			a.say("the password is changed")
			return nil
		})
	}
	return cmd
}

func (a *app) keyRecoveryCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "recovery",
		Short:   "Make a recovery key: a password to print and keep safe",
		Example: "  dedupfs key recovery --repo gdrive:home",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withRepository(cmd.Context(), func(r *store.Repository) error {
				printable, err := r.AddRecovery(cmd.Context())
				if err != nil {
					return err
				}
				return a.printRecovery(printable)
			})
		},
	}
}

func (a *app) keyRotateCommand() *cobra.Command {
	var reseal bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Seal what is written from now on under a new key",
		Long: "Begin a new key. Everything that is written from now on is sealed under it, by this machine at once and by mounts within\n" +
			"a minute. No other password is needed or changes. Do this after `dedupfs key remove`: a removed password cannot open what\n" +
			"is sealed under later keys, even for somebody who has kept a copy of the repository. What was sealed before can be read\n" +
			"with old copies for ever; nothing can change that.\n\n" +
			"With --reseal, what was stored before is stored anew under the new key, as `dedupfs gc --reseal` does at any later time: it\n" +
			"downloads and uploads all data once, goes on where it was stopped, and the old objects go as with `dedupfs gc`.",
		Example: "  dedupfs key remove laptop && dedupfs key rotate\n  dedupfs key rotate --reseal",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := a.withRepository(cmd.Context(), func(r *store.Repository) error {
				if err := r.RotateKey(cmd.Context()); err != nil {
					return err
				}
				_, newest := r.Epochs()
				if a.g.json {
					return a.printJSON(map[string]uint32{"key": newest})
				}
				a.say("what is written from now on is sealed under key number %d", newest)
				return nil
			})
			if err != nil || !reseal {
				return err
			}
			return a.gc(cmd.Context(), nil, &gcOptions{reseal: true, maxUnused: 0.05})
		},
	}
	cmd.Flags().BoolVar(&reseal, "reseal", false, "then store anew what is sealed under older keys")
	return cmd
}

// printRecovery prints a recovery key, which is shown once.
func (a *app) printRecovery(key string) error {
	if a.g.json {
		return a.printJSON(map[string]string{"recovery_key": key})
	}
	a.say("Recovery key (it opens the repository like a password; print it, keep it safe, it is not shown again):")
	_, err := fmt.Fprintln(a.stdout, key)
	return err
}
