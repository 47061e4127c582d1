//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/dedupfs/dedupfs/experiment"
)

// storeCommand, as first argument, makes this program the process that is measured.
const storeCommand = "store-forever"

// chosen is the configuration that the thesis chose, with a verb for its pause.
const chosen = "Custom-250-%s/TTTD-4-Adler32/Gzip-Cipher"

// measurePause measures a process that stores data with a pause after each multichunk.
func measurePause(c *config, data, pause string) (*result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, storeCommand, fmt.Sprintf(chosen, pause), data)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.each)
	defer cancel()
	r := &result{}
	err = r.sample(ctx, cmd.Process)
	kerr := cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return r, errors.Join(err, kerr)
}

// storeForever stores a data set again and again, each time into a repository that is new, and sleeps the pauses of the configuration.
func storeForever(config, data string) error {
	c, err := experiment.ParseConfig(config)
	c.Sleep = true
	for err == nil {
		_, err = experiment.Chunking(context.Background(), data, c, nil)
	}
	return err
}
