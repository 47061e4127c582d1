// Package upload measures how fast objects of different sizes go to real servers over lines of different kinds: experiment 2 of
// the thesis. The servers are on loopback: rclone's own, in this process, or what is installed, such as vsftpd; the lines are made by a
// Proxy before them. What is measured is the product's own way of putting an object.
package upload

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/rclone/rclone/cmd/serve/ftp" // registers a server
	_ "github.com/rclone/rclone/cmd/serve/s3"
	_ "github.com/rclone/rclone/cmd/serve/sftp"
	_ "github.com/rclone/rclone/cmd/serve/webdav"
	"github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/config/obscure"
	"github.com/rclone/rclone/fs/rc"

	"github.com/dedupfs/dedupfs/experiment"
	"github.com/dedupfs/dedupfs/remote"
)

// Result is how fast objects of one size go.
type Result struct {
	Protocol string  `json:"protocol"`
	Server   string  `json:"server"`
	Line     string  `json:"line"`
	Size     int     `json:"size"`     // bytes of an object
	Parallel int     `json:"parallel"` // objects at a time
	Objects  int64   `json:"objects"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"bytes_per_second"`
}

// Protocols are the kinds of server that there are.
func Protocols() []string { return []string{"ftp", "sftp", "webdav", "s3"} }

// Sizes are the sizes of objects in KB: those of the thesis, and larger ones.
func Sizes() []int { return []int{4, 8, 16, 125, 250, 1024, 2048, 4096, 8192, 16384, 32768} }

const (
	username, password = "user", "loopback"
	bucket             = "objects"
)

func obscured() string { return obscure.MustObscure(password) }

// params are what each server is started with.
func params(protocol string) rc.Params {
	in := rc.Params{"type": protocol, "addr": "127.0.0.1:0"}
	switch protocol {
	case "s3":
		in["opt"] = rc.Params{"AuthKey": []string{username + "," + password}}
		in["vfs_cache_mode"] = "writes"
	case "ftp":
		in["vfs_cache_mode"] = "writes"
		fallthrough
	default:
		in["user"], in["pass"] = username, password
	}
	return in
}

// place returns the place of a repository on a server of rclone's, with a verb for the port.
func place(protocol string) string {
	switch protocol {
	case "webdav":
		return fmt.Sprintf(":webdav,url='http://127.0.0.1:%%s/',vendor=other,user=%s,pass=%s:%s", username, obscured(), bucket)
	case "s3":
		return fmt.Sprintf(":s3,provider=Rclone,endpoint='http://127.0.0.1:%%s',access_key_id=%s,secret_access_key='%s':%s", username, password, bucket)
	default:
		return fmt.Sprintf(":%s,host=127.0.0.1,port=%%s,user=%s,pass=%s:%s", protocol, username, obscured(), bucket)
	}
}

// A Server is a server of one protocol behind a line.
type Server struct {
	protocol string
	name     string
	line     experiment.Line
	dir      string
	id       string   // of a server of rclone's that was started
	process  *process // what serves instead
	proxy    *Proxy
	remote   *remote.Remote
}

// Options are options of Start. Nil is the defaults.
type Options struct {
	Installed bool // serve with what is installed on this machine, not with rclone's own server
}

// Start starts a server that keeps its objects below dir, and connects to it over a line.
func Start(ctx context.Context, protocol string, line experiment.Line, dir string, o *Options) (*Server, error) {
	if err := config.SetCacheDir(dir); err != nil {
		return nil, err
	}
	s := &Server{protocol: protocol, name: "rclone", line: line, proxy: NewProxy(line, protocol == "ftp")}
	var err error
	if s.dir, err = os.MkdirTemp(dir, protocol); err != nil {
		return nil, err
	}
	serve := s.serve
	if o != nil && o.Installed {
		s.name, serve = programs[protocol].command, s.run
	}
	addr, at, err := serve(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", s.name, err), s.Close())
	}
	if addr, err = s.proxy.Listen(addr); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	_, port, _ := net.SplitHostPort(addr)
	if s.remote, err = remote.Open(ctx, fmt.Sprintf(at, port), &remote.Options{Create: true}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// run starts what is installed.
func (s *Server) run(ctx context.Context) (addr, at string, err error) {
	s.process, addr, at, err = programs[s.protocol].start(ctx, s.dir)
	return addr, at, err
}

// serve starts a server of rclone's.
func (s *Server) serve(ctx context.Context) (addr, at string, err error) {
	in := params(s.protocol)
	in["fs"] = s.dir
	if s.protocol == "ftp" { // it does not tell which port it got
		port, err := freePort()
		if err != nil {
			return "", "", err
		}
		addr = fmt.Sprintf("127.0.0.1:%d", port)
		in["addr"] = addr
	}
	out, err := rc.Calls.Get("serve/start").Fn(ctx, in)
	if err != nil {
		return "", "", err
	}
	s.id, _ = out["id"].(string)
	if s.protocol != "ftp" {
		addr, _ = out["addr"].(string)
	}
	return addr, place(s.protocol), nil
}

// Close ends the server and removes what it has.
func (s *Server) Close() error {
	var err error
	if s.id != "" {
		_, err = rc.Calls.Get("serve/stop").Fn(context.Background(), rc.Params{"id": s.id})
	}
	s.proxy.Close()
	if s.process != nil {
		err = errors.Join(err, s.process.stop())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Measure puts objects of random bytes, several at a time, until the time is up, and at least one each.
func (s *Server) Measure(ctx context.Context, size, parallel int, d time.Duration) (*Result, error) {
	if err := s.warm(ctx, parallel); err != nil {
		return nil, err
	}
	r := &Result{Protocol: s.protocol, Server: s.name, Line: s.line.Name, Size: size, Parallel: parallel}
	var objects atomic.Int64
	var mu sync.Mutex // guards failed
	var failed error
	var all sync.WaitGroup
	start := time.Now()
	for range parallel {
		all.Go(func() {
			err := s.putUntil(ctx, size, start.Add(d), &objects)
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	r.Objects, r.Seconds = objects.Load(), time.Since(start).Seconds()
	r.Rate = float64(r.Objects) * float64(size) / r.Seconds
	return r, failed
}

// warm makes the connections, which a mount makes once.
func (s *Server) warm(ctx context.Context, parallel int) error {
	var all sync.WaitGroup
	errs := make([]error, parallel)
	for i := range parallel {
		all.Go(func() { errs[i] = s.put(ctx, []byte("warm")) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *Server) putUntil(ctx context.Context, size int, end time.Time, objects *atomic.Int64) error {
	data := make([]byte, size)
	rand.Read(data)
	for {
		if err := s.put(ctx, data); err != nil {
			return err
		}
		objects.Add(1)
		if time.Now().After(end) {
			return nil
		}
	}
}

func (s *Server) put(ctx context.Context, data []byte) error {
	var name [16]byte
	rand.Read(name[:])
	hexed := hex.EncodeToString(name[:])
	return s.remote.Put(ctx, "data/"+hexed[:2]+"/"+hexed, data)
}

// Charts draws the results by size, a chart for each line.
func Charts(results []*Result) (charts []experiment.Chart, err error) {
	for i, line := range experiment.Lines() {
		var series []experiment.Series
		for _, protocol := range Protocols() {
			for _, parallel := range []int{1, 4} {
				s := experiment.Series{Name: fmt.Sprintf("%s, %d at a time", protocol, parallel)}
				for _, r := range results {
					if r.Protocol == protocol && r.Line == line.Name && r.Parallel == parallel {
						s.Points = append(s.Points, experiment.Point{X: float64(r.Size) / 1024, Y: r.Rate / 1e6})
					}
				}
				if len(s.Points) > 0 {
					series = append(series, s)
				}
			}
		}
		if len(series) == 0 {
			continue
		}
		c, err := experiment.Draw(fmt.Sprintf("upload-%d", i+1), experiment.Axes{Title: "upload by object size: " + line.Name, X: "KB of an object", Y: "MB/s", LogX: true, LogY: true, LegendBottom: true}, series)
		if err != nil {
			return nil, err
		}
		charts = append(charts, c)
	}
	return charts, nil
}
