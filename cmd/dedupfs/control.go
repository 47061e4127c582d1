package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// A mount is controlled over a socket in its cache directory. Requests are HTTP;
// an answer is lines of JSON, each a reply: any number with progress or items,
// then one with the result or the error.

// reply is one line of an answer.
type reply struct {
	Progress *progress       `json:"progress,omitempty"`
	Item     json.RawMessage `json:"item,omitempty"` // of a list too long for one result
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *failure        `json:"error,omitempty"`
}

// progress says how far an operation is.
type progress struct {
	What  string `json:"what"`
	Done  int64  `json:"done"`  // bytes
	Total int64  `json:"total"` // bytes
}

// maxSocketPath is the longest path of a socket, in bytes: 104 with the NUL on
// macOS, a little more on Linux.
const maxSocketPath = 103

// listenControl makes the socket of a mount: in dir, or, if its path would be
// too long, in a directory of its own under the system's for temporary files.
// Closing the listener removes what was made.
func listenControl(dir string) (*controlListener, error) {
	own := ""
	if len(filepath.Join(dir, "control")) > maxSocketPath {
		var err error
		if own, err = os.MkdirTemp("", "dedupfs-"); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
		dir = own
	}
	path := filepath.Join(dir, "control")
	// The lock of the cache directory is ours, so this is a dead process's socket.
	os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &controlListener{l, path, own}, nil
}

type controlListener struct {
	net.Listener
	path string
	own  string // directory to remove with the socket, or ""
}

func (l *controlListener) Close() error {
	err := l.Listener.Close()
	if l.own != "" {
		os.Remove(l.own)
	}
	return err
}

// maxRequest bounds the body of a request, in bytes.
const maxRequest = 1 << 20

// answer is how a request is served: it may report progress, and returns the
// result.
type answer func(ctx context.Context, r *http.Request, report func(progress)) (any, error)

// ServeHTTP writes what the function reports and returns.
func (fn answer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	list := func(ctx context.Context, r *http.Request, _ func(any) error, report func(progress)) (any, error) {
		return fn(ctx, r, report)
	}
	series(list).ServeHTTP(w, r)
}

// series is an answer that gives item after item before its result.
type series func(ctx context.Context, r *http.Request, item func(any) error, report func(progress)) (any, error)

// ServeHTTP writes what the function gives, reports and returns.
func (fn series) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Only when the body has been read does the server notice that a client goes away.
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	out := json.NewEncoder(w)
	send := func(line reply) {
		// A client that has gone away is told nothing; the operation goes on or
		// stops with its context.
		_ = out.Encode(line)
		_ = http.NewResponseController(w).Flush()
	}
	item := func(v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			panic("control: item is no JSON: " + err.Error())
		}
		return out.Encode(reply{Item: text})
	}
	result, err := fn(r.Context(), r, item, func(p progress) { send(reply{Progress: &p}) })
	if err != nil {
		code, message := verdict(err)
		send(reply{Error: &failure{code, message}})
		return
	}
	text, err := json.Marshal(result)
	if err != nil {
		panic("control: result is no JSON: " + err.Error())
	}
	send(reply{Result: text})
}

// serveControl serves until the listener is closed; wait returns when the last
// answer is out.
func serveControl(l net.Listener, h http.Handler, log *slog.Logger) (wait func()) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control socket", "err", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			srv.Close()
		}
		<-done
	}
}

// readJSON reads the body of a request into in.
func readJSON(r *http.Request, in any) error {
	if err := json.NewDecoder(r.Body).Decode(in); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	return nil
}

// mounted is a running mount seen from another process.
type mounted struct {
	dir  string // root of the mount
	http *http.Client
}

func newMounted(dir, socket string) *mounted {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &mounted{dir, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// call sends a request and reads the answer into out. out and report may be nil.
func (m *mounted) call(ctx context.Context, method, path string, in, out any, report func(progress)) error {
	return m.list(ctx, method, path, in, nil, out, report)
}

// list is call for an answer with items, each of which is given to item.
func (m *mounted) list(ctx context.Context, method, path string, in any, item func(json.RawMessage) error, out any, report func(progress)) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://mount"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := m.http.Do(req)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("ask the mount at %s: %w", m.dir, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the mount at %s: %s; it may be of another version", m.dir, resp.Status)
	}
	if err := readReplies(resp.Body, item, out, report); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

// readReplies reads an answer to its end.
func readReplies(r io.Reader, item func(json.RawMessage) error, out any, report func(progress)) error {
	for in := json.NewDecoder(bufio.NewReader(r)); ; {
		var line reply
		switch err := in.Decode(&line); {
		case err == io.EOF:
			return errors.New("the mount ended before it had answered")
		case err != nil:
			return fmt.Errorf("read answer of the mount: %w", err)
		case line.Error != nil:
			return line.Error
		case line.Item != nil && item != nil:
			if err := item(line.Item); err != nil {
				return err
			}
		case line.Result != nil && out == nil:
			return nil
		case line.Result != nil:
			return json.Unmarshal(line.Result, out)
		case line.Progress != nil && report != nil:
			report(*line.Progress)
		}
	}
}
