package main

import (
	"context"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// defaultKDFMemory is in bytes.
func defaultKDFMemory() sizeFlag { return sizeFlag(store.DefaultKDF().Memory) << 10 }

// initOptions are the flags of init.
type initOptions struct {
	multichunk  sizeFlag
	group       sizeFlag
	compression string
	chunker     string
	settle      durationFlag
	settleGiven bool
	keyName     string
	kdfMemory   sizeFlag
	parity      parityFlag
}

func (a *app) initCommand() *cobra.Command {
	o := &initOptions{kdfMemory: defaultKDFMemory()}
	cmd := &cobra.Command{
		Use:   "init [REPO]",
		Short: "Create a repository",
		Long: "Create a repository in an empty place, or one that is not there yet, and print a recovery key, once.\n" +
			"What is chosen here holds for as long as the repository does.",
		Example: "  dedupfs init gdrive:home\n  dedupfs init --parity 5% --key-name paper /mnt/disk/repo",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, err := a.repoURL(args)
			if err != nil {
				return err
			}
			if err := o.checkChunker(); err != nil {
				return err
			}
			o.settleGiven = cmd.Flags().Changed("settle-time")
			return a.initRepository(cmd.Context(), url, o)
		},
	}
	f := cmd.Flags()
	f.Var(&o.multichunk, "multichunk-size", "size of the objects on the remote, 64K to 64M (default 8M)")
	f.Var(&o.group, "group-size", "bytes that are compressed together, 4K to 4M (default 512K)")
	f.StringVar(&o.compression, "compression", store.DefaultCompression, "`METHOD`: zstd, zstd-fast, zstd-better, gzip, bzip2 or none")
	f.StringVar(&o.chunker, "chunker", "", "`NAME` of the way all files are cut, such as GFD-16, TTTD-4-Adler32 or Fixed-4;\n"+
		"a wrong name lists them (default: by the kind of file)")
	f.Var(&o.settle, "settle-time", "time until listings of the storage show all that was put (default 0 for local directories, else 1h)")
	f.Var(&o.kdfMemory, "kdf-memory", kdfMemoryUsage)
	f.Var(&o.parity, "parity", "`SHARE` of its length, such as 5%, to put beside each object of data so that bit rot can be repaired")
	f.StringVar(&o.keyName, "key-name", "", "`NAME` of the first key slot, for people")
	return cmd
}

// checkChunker refuses a name that no repository can have, before anything is opened.
func (o *initOptions) checkChunker() error {
	if o.chunker == "" {
		return nil
	}
	c, err := chunking.New(o.chunker, make([]byte, 32))
	if err != nil {
		return usageError("--chunker: %v", err)
	}
	if _, largest := c.Bounds(); largest > store.MaxChunk {
		return usageError("--chunker %s makes chunks of more than %d KiB, which a repository does not take; choose a smaller one", o.chunker, store.MaxChunk>>10)
	}
	return nil
}

func (a *app) initRepository(ctx context.Context, url string, o *initOptions) error {
	password, err := a.password(ctx, true)
	if err != nil {
		return err
	}
	st, err := a.openRemote(ctx, url, true, false)
	if err != nil {
		return err
	}
	_, recovery, err := store.Init(ctx, st, password, o.store(st))
	if err != nil {
		return err
	}
	a.say("created a repository in %s", escape(st.String()))
	return a.printRecovery(recovery)
}

func (o *initOptions) store(st *remote.Remote) *store.InitOptions {
	config := store.Config{
		MultichunkSize: int(o.multichunk), GroupSize: int(o.group), Compression: o.compression,
		SettleTime: st.SettleTimeDefault(), Parity: int(o.parity),
	}
	if o.chunker != "" {
		config.Chunkers = chunking.Set{Default: o.chunker, Pages: o.chunker, Media: o.chunker}
	}
	if o.settleGiven {
		config.SettleTime = time.Duration(o.settle)
	}
	if config.SettleTime == 0 {
		config.SettleTime = store.NoSettleTime
	}
	return &store.InitOptions{Config: config, KDF: kdfOf(o.kdfMemory), SlotName: o.keyName}
}

const kdfMemoryUsage = "memory that trying a password takes; more makes guessing dearer"

// kdfOf returns how dear it is to try the password of a new slot.
func kdfOf(memory sizeFlag) store.KDF {
	kdf := store.DefaultKDF()
	kdf.Memory = uint32(min(int64(memory)>>10, math.MaxUint32))
	return kdf
}
