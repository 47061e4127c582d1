package remote

import (
	"log/slog"

	_ "github.com/rclone/rclone/backend/alias"
	_ "github.com/rclone/rclone/backend/combine" // wraps local, to test uploads that are renamed
)

// NewLogHandler is the way of rclone's log to next.
func NewLogHandler(next slog.Handler) slog.Handler { return logHandler{next} }

// Learn makes known the secrets in url.
func Learn(url string) { scrub.learn(url) }
