//go:build !slim

package remote

import _ "github.com/rclone/rclone/backend/all" // every storage that rclone knows
