package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/accounting"
	"github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/config/configfile"
	"github.com/rclone/rclone/fs/fspath"
)

// setup makes of rclone a library: no questions on the terminal, its log in
// ours. The RCLONE_* variables of global options it has read by itself when the
// process started. accounting.Start is not called because it takes SIGUSR2.
var setup = sync.OnceFunc(func() {
	fs.SetLogger(logHandler{slog.Default().Handler()})
	ci := fs.GetConfig(context.Background())
	ci.AskPassword = false
	ci.Dump &^= fs.DumpAuth
	if slog.Default().Enabled(context.Background(), slog.LevelDebug) {
		ci.LogLevel = fs.LogLevelDebug
	}
	if bw := ci.BwLimit.LimitAt(time.Now()).Bandwidth; bw.IsSet() {
		accounting.TokenBucket.SetBwLimit(bw)
	}
	if dir := os.Getenv("RCLONE_CACHE_DIR"); dir != "" {
		_ = config.SetCacheDir(dir) // fails only if there is no working directory
	}
	accounting.TokenBucket.StartTokenTicker(context.Background())
	accounting.StartLimitTPS(context.Background())
})

// configLoad guards the loading of rclone's configuration, which is global.
var configLoad struct {
	mu        sync.Mutex
	installed bool
	path      string // RCLONE_CONFIG as it was when last loaded
}

// loadConfig loads the user's rclone configuration. A missing file is an empty
// one. rclone itself would ask for the password of an encrypted file, and end
// the process if it cannot read one.
func loadConfig() error {
	setup()
	c := &configLoad
	c.mu.Lock()
	defer c.mu.Unlock()
	path := os.Getenv("RCLONE_CONFIG")
	if c.installed && c.path == path {
		return nil
	}
	if path != "" {
		if err := config.SetConfigPath(path); err != nil {
			return fmt.Errorf("rclone configuration %s: %w", path, err)
		}
	}
	configfile.Install()
	err := config.Data().Load()
	if err != nil && !errors.Is(err, config.ErrorConfigFileNotFound) {
		return fmt.Errorf("rclone configuration %s: %s", config.GetConfigPath(), configAdvice(err))
	}
	config.LoadedData()
	c.installed, c.path = true, path
	return nil
}

func configAdvice(err error) string {
	if strings.Contains(err.Error(), "not allowed to ask for password") {
		return "it is encrypted; set RCLONE_CONFIG_PASS or RCLONE_PASSWORD_COMMAND"
	}
	return scrub.text(err.Error())
}

// defaults are the backend options that suit immutable objects, unless the user
// has said otherwise: no times are set, which would cost a call each.
var defaults = map[string]string{"sftp": "set_modtime=false"}

// connectTimeout is how long a storage may take to accept a connection; rclone's
// own default is a minute.
const connectTimeout = 15 * time.Second

// connect returns rclone's view of url.
func connect(ctx context.Context, url string) (fs.Fs, error) {
	if err := loadConfig(); err != nil {
		return nil, err
	}
	scrub.learn(url)
	info, _, _, _, err := fs.ParseRemote(url)
	if errors.Is(err, fs.ErrorNotFoundInConfigFile) {
		return nil, errors.New("this remote is not in the rclone configuration; \"rclone config\" makes it, \"rclone listremotes\" shows what there is")
	}
	if err != nil {
		return nil, err
	}
	if option, ok := defaults[info.Name]; ok {
		url = withOption(url, option)
	}
	// The backend keeps ctx for as long as it lives, so it must not end with ours.
	ctx, ci := fs.AddConfig(context.WithoutCancel(ctx))
	if _, set := os.LookupEnv("RCLONE_LOW_LEVEL_RETRIES"); !set {
		ci.LowLevelRetries = 1 // we try again, and know better when not to
	}
	if _, set := os.LookupEnv("RCLONE_CONTIMEOUT"); !set {
		ci.ConnectTimeout = fs.Duration(connectTimeout)
	}
	f, err := fs.NewFs(ctx, url)
	if errors.Is(err, fs.ErrorIsFile) {
		return nil, errors.New("is a file and not a directory")
	}
	return f, err
}

// withOption adds an option to a URL that does not set it.
func withOption(url, option string) string {
	parsed, err := fspath.Parse(url)
	key, _, _ := strings.Cut(option, "=")
	if _, set := parsed.Config[key]; err != nil || set {
		return url
	}
	return parsed.ConfigString + "," + option + ":" + parsed.Path
}

// A logHandler passes on what rclone logs, at debug level and without secrets:
// what matters to our users comes back as an error.
type logHandler struct{ next slog.Handler }

func (h logHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.next.Enabled(ctx, slog.LevelDebug)
}

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, slog.LevelDebug, "rclone: "+scrub.text(r.Message), 0)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(scrubAttr(a))
		return true
	})
	return h.next.Handle(ctx, out)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = scrubAttr(a)
	}
	return logHandler{h.next.WithAttrs(clean)}
}

func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.next.WithGroup(name)} }

func scrubAttr(a slog.Attr) slog.Attr { return slog.String(a.Key, scrub.text(a.Value.String())) }
