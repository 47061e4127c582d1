//go:build linux

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/net/webdav"
)

// server shows a directory over WebDAV on this machine, and can be away.
type server struct {
	t       *testing.T
	handler http.Handler
	addr    string

	mu  sync.Mutex // guards srv
	srv *http.Server
}

func newServer(t *testing.T, dir string) *server {
	t.Helper()
	s := &server{
		t:       t,
		handler: &webdav.Handler{FileSystem: webdav.Dir(dir), LockSystem: webdav.NewMemLS()},
		addr:    "127.0.0.1:0",
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// url returns where the directory is, as rclone writes it.
func (s *server) url() string {
	return fmt.Sprintf(":webdav,url='http://%s',vendor=other:", s.addr)
}

// start listens, at the same port as before.
func (s *server) start() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv = &http.Server{Handler: s.handler}
	go s.srv.Serve(l)
}

// stop ends all connections, and takes no new ones.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv.Close()
}
