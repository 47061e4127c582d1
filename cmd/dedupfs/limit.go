package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dedupfs/dedupfs/limit"
	"github.com/dedupfs/dedupfs/store"
)

// rateFlag is a flag that is a rate, or a timetable of rates.
type rateFlag struct{ limit.Timetable }

func (f *rateFlag) Type() string { return "rate" }

func (f *rateFlag) Set(s string) (err error) {
	f.Timetable, err = limit.ParseTimetable(s, parseSize)
	return err
}

// coresFlag is a flag that is a share of the processor, in cores.
type coresFlag float64

func (f *coresFlag) Type() string   { return "share" }
func (f *coresFlag) String() string { return limit.FormatCores(float64(*f)) }

func (f *coresFlag) Set(s string) error {
	cores, err := limit.ParseCores(s)
	*f = coresFlag(cores)
	return err
}

func (a *app) addLimits(f *pflag.FlagSet) {
	f.Var(&a.g.limitUpload, "limit-upload", "upload at most this many bytes per second: 512K, off, or a timetable as in \"08:00,512K Sat-00:00,off\"")
	f.Var(&a.g.limitDownload, "limit-download", "download at most this many bytes per second, written in the same way")
	f.Var(&a.g.cpuLimit, "cpu-limit", "use at most this share of the processor: 30% of one core, 30%machine of all cores, or off")
	f.BoolVar(&a.g.nice, "nice", false, "let all other programs go first, for the processor and the disks; a mount does so for its work in the background")
}

// startLimits puts the limits of the flags into force.
func (a *app) startLimits(mounts bool) {
	a.mounts = mounts
	a.pace.CPU = limit.NewCPU(float64(a.g.cpuLimit), nil)
	a.pace.nice = a.g.nice && mounts
	if a.g.nice && !mounts {
		limit.NiceProcess()
	}
}

// pacer holds back the work of this process.
type pacer struct {
	*limit.CPU
	nice bool
}

var _ store.Pacer = (*pacer)(nil)

// Worker is called by goroutines that work in the background.
func (p *pacer) Worker() {
	if p.nice {
		limit.Nice()
	}
}

// A keeper keeps a storage to timetables as time goes by.
type keeper struct {
	set func(upload, download int64) // bytes per second

	mu       sync.Mutex // guards all below
	up, down limit.Timetable
	timer    *time.Timer // until the next look at the clock; nil if there is none
}

// newKeeper returns a keeper of a storage that is at the limits of the timetables now.
func newKeeper(set func(upload, download int64), up, down limit.Timetable) *keeper {
	k := &keeper{set: set, up: up, down: down}
	if now := time.Now(); up.Next(now) > 0 || down.Next(now) > 0 {
		k.look()
	}
	return k
}

// lookAgain bounds how long a keeper believes that it knows the time: clocks are set, and machines sleep.
const lookAgain = time.Minute

// apply sets what holds now. The caller holds mu.
func (k *keeper) apply() {
	now := time.Now()
	k.set(k.up.At(now), k.down.At(now))
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	next := lookAgain
	for _, t := range []limit.Timetable{k.up, k.down} {
		if d := t.Next(now); d > 0 {
			next = min(next, d)
			k.timer = time.AfterFunc(next, k.look)
		}
	}
}

func (k *keeper) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.apply()
}

// change replaces the timetables that are not nil.
func (k *keeper) change(up, down *limit.Timetable) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if up != nil {
		k.up = *up
	}
	if down != nil {
		k.down = *down
	}
	k.apply()
}

// limitsChange is the body of POST /limits; what is nil stays.
type limitsChange struct {
	Upload   *string `json:"upload"`
	Download *string `json:"download"`
	CPU      *string `json:"cpu"`
}

// limits are what a mount tells of its limits.
type limits struct {
	Upload      string  `json:"upload"`
	UploadNow   int64   `json:"upload_now"` // bytes per second; 0 is no limit
	Download    string  `json:"download"`
	DownloadNow int64   `json:"download_now"`
	CPU         string  `json:"cpu"`
	Used        float64 `json:"cpu_seconds"` // of the processor, since the mount
	Nice        bool    `json:"nice"`
}

func (a *app) limitCommand() *cobra.Command {
	given := map[string]bool{}
	cmd := &cobra.Command{
		Use:   "limit [DIR]",
		Short: "Show or change the limits of a mount",
		Long: "Show what a mount may use of the line and of the processor. With --limit-upload, --limit-download or --cpu-limit on the\n" +
			"command line that limit is changed, at once and until the mount ends; the variables of these flags change nothing.",
		Example: "  dedupfs limit ~/Cloud\n  dedupfs limit ~/Cloud --limit-upload 1M --cpu-limit 30%\n" +
			"  dedupfs limit ~/Cloud --limit-upload \"08:00,512K 19:00,off\"",
		Args: cobra.MaximumNArgs(1),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			// What comes from the environment is not meant as a change.
			cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
			return a.start(cmd)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.limit(cmd.Context(), args, given) },
	}
	return cmd
}

func (a *app) limit(ctx context.Context, args []string, given map[string]bool) error {
	m, err := a.theMount(ctx, args)
	if err != nil {
		return err
	}
	var change limitsChange
	value := func(flag string, s string) *string {
		if !given[flag] {
			return nil
		}
		return &s
	}
	change.Upload = value("limit-upload", a.g.limitUpload.String())
	change.Download = value("limit-download", a.g.limitDownload.String())
	change.CPU = value("cpu-limit", a.g.cpuLimit.String())
	var now limits
	if err := m.call(ctx, "POST", "/limits", change, &now, nil); err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(now)
	}
	t := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "upload\t%s\t%s\n", now.Upload, rateNow(now.UploadNow))
	fmt.Fprintf(t, "download\t%s\t%s\n", now.Download, rateNow(now.DownloadNow))
	fmt.Fprintf(t, "processor\t%s\t%s used since the mount\n", now.CPU, seconds(now.Used))
	return t.Flush()
}

// rateNow says what holds now.
func rateNow(n int64) string {
	if n == 0 {
		return "no limit now"
	}
	return humanSize(n) + "/s now"
}

// serveLimits changes limits and answers with those that hold.
func (s *session) serveLimits(_ context.Context, r *http.Request, _ func(progress)) (any, error) {
	var change limitsChange
	if err := readJSON(r, &change); err != nil {
		return nil, err
	}
	up, err := timetableOf(change.Upload)
	if err != nil {
		return nil, err
	}
	down, err := timetableOf(change.Download)
	if err != nil {
		return nil, err
	}
	if change.CPU != nil {
		cores, err := limit.ParseCores(*change.CPU)
		if err != nil {
			return nil, err
		}
		s.pace.Set(cores)
	}
	if up != nil || down != nil {
		s.keeper.change(up, down)
	}
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	return limits{
		Upload: k.up.String(), UploadNow: k.up.At(now), Download: k.down.String(), DownloadNow: k.down.At(now),
		CPU: limit.FormatCores(s.pace.Cores()), Used: limit.ProcessorTime().Seconds(), Nice: s.g.nice,
	}, nil
}

// timetableOf reads a timetable that may be missing.
func timetableOf(s *string) (*limit.Timetable, error) {
	if s == nil {
		return nil, nil
	}
	t, err := limit.ParseTimetable(*s, parseSize)
	return &t, err
}
