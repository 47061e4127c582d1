package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/term"
)

// maxPassword bounds what is read as a password, in bytes.
const maxPassword = 64 << 10

// passwordSource says where a password comes from: the first that is set of a
// file, a command, and a variable, else the terminal.
type passwordSource struct {
	file, command string
	variable      string // its name
	prompt        string
}

// read returns the password. confirm asks a terminal twice.
func (p passwordSource) read(ctx context.Context, a *app, confirm bool) ([]byte, error) {
	switch {
	case p.file != "":
		return passwordFromFile(p.file)
	case p.command != "":
		return passwordFromCommand(ctx, p.command)
	}
	if value, ok := os.LookupEnv(p.variable); ok {
		return checkPassword([]byte(value), p.variable)
	}
	return p.ask(a, confirm)
}

func passwordFromFile(name string) ([]byte, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read password file: %w", err)
	}
	return checkPassword(dropNewline(b), name)
}

// passwordFromCommand runs command by the shell. Its standard error and input
// stay those of the user, so that it can ask in turn.
func passwordFromCommand(ctx context.Context, command string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("password command: %w", err)
	}
	return checkPassword(dropNewline(b), "the password command")
}

// ask reads the password from the terminal without showing it.
func (p passwordSource) ask(a *app, confirm bool) ([]byte, error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return nil, fmt.Errorf("no password: set %s, or use --password-file or --password-command", p.variable)
	}
	first, err := a.askHidden(fd, p.prompt)
	if err != nil || !confirm {
		return first, err
	}
	second, err := a.askHidden(fd, "Once more: ")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		return nil, errors.New("the two passwords differ; nothing was changed")
	}
	return first, nil
}

func (a *app) askHidden(fd int, prompt string) ([]byte, error) {
	fmt.Fprint(a.stderr, prompt)
	defer fmt.Fprintln(a.stderr)
	b, err := term.ReadPassword(fd)
	if err != nil {
		return nil, fmt.Errorf("read password: %w", err)
	}
	return checkPassword(b, "the terminal")
}

// dropNewline removes one newline from the end of b, and nothing else.
func dropNewline(b []byte) []byte { return bytes.TrimSuffix(b, []byte("\n")) }

func checkPassword(b []byte, from string) ([]byte, error) {
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("the password from %s is empty", from)
	case len(b) > maxPassword:
		return nil, fmt.Errorf("the password from %s is longer than %d bytes", from, maxPassword)
	}
	return b, nil
}
