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
		Long: "A repository is opened by any of its key slots; each has a password of its own. The commands here need one of\n" +
			"these passwords.",
		Args: cobra.NoArgs,
		RunE: showHelp,
	}
	cmd.AddCommand(a.keyListCommand(), a.keyAddCommand(), a.keyRemoveCommand(), a.keyPasswdCommand(), a.keyRecoveryCommand())
	return cmd
}

func (a *app) keyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the key slots",
		Args:  cobra.NoArgs,
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
}

func (a *app) printSlots(slots []store.Slot) error {
	if a.g.json {
		list := []slotJSON{}
		for _, s := range slots {
			list = append(list, slotJSON{s.ID, s.Name, s.Created, s.Recovery, s.Current})
		}
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\tID\tNAME\tCREATED")
	for _, s := range slots {
		mark := ""
		if s.Current {
			mark = "*"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", mark, s.ID, escape(s.Name), s.Created.Local().Format(time.DateTime))
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
		Use:   "add",
		Short: "Add a key slot with a password of its own",
		Args:  cobra.NoArgs,
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
		Use:   "remove ID|NAME",
		Short: "Remove a key slot, so that its password opens nothing any more",
		Args:  cobra.ExactArgs(1),
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
		Use:   "passwd",
		Short: "Change the password of the key slot in use",
		Args:  cobra.NoArgs,
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
		Use:   "recovery",
		Short: "Make a recovery key: a password to print and keep safe",
		Args:  cobra.NoArgs,
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

// printRecovery prints a recovery key, which is shown once.
func (a *app) printRecovery(key string) error {
	if a.g.json {
		return a.printJSON(map[string]string{"recovery_key": key})
	}
	a.say("Recovery key (it opens the repository like a password; print it, keep it safe, it is not shown again):")
	_, err := fmt.Fprintln(a.stdout, key)
	return err
}
