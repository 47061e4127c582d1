//go:build !linux

package cache_test

import "errors"

func mountTmpfs(dir, options string) error { return errors.ErrUnsupported }

func unmountTmpfs(dir string) error { return nil }
