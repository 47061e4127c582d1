package upload

import (
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/experiment"
)

// TestProxy checks that a line is as slow as it shall be, and no slower.
func TestProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // answers when all has come
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, io.LimitReader(c, 100_000))
			c.Write([]byte{byte(n / 100_000)})
			c.Close()
		}
	}()
	p := NewProxy(experiment.Line{Up: 500_000, Down: 1 << 20, Latency: 50 * time.Millisecond}, false)
	defer p.Close()
	addr, err := p.Listen(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	if _, err := c.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(c, answer); err != nil || answer[0] != 1 {
		t.Fatalf("answer %v, %v", answer, err)
	}
	// A latency to connect, 200 ms for the bytes, and a latency there and back.
	if d := time.Since(start); d < 290*time.Millisecond {
		t.Errorf("100,000 bytes took %v, which is too fast for the line", d)
	}
}

// TestUpload puts objects on each server, through a line.
func TestUpload(t *testing.T) {
	line := experiment.Line{Name: "test", Up: 4 << 20, Down: 4 << 20, Latency: 4 * time.Millisecond}
	for _, protocol := range Protocols() {
		t.Run(protocol, func(t *testing.T) {
			s, err := Start(t.Context(), protocol, line, t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Measure(t.Context(), 100<<10, 2, 50*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if r.Objects < 2 || r.Rate > 1.1*float64(line.Up) {
				t.Errorf("%d objects at %.0f bytes/s over a line of %d", r.Objects, r.Rate, line.Up)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestInstalled puts objects on servers that are installed.
func TestInstalled(t *testing.T) {
	line := experiment.Line{Name: "test", Up: 4 << 20, Down: 4 << 20, Latency: 4 * time.Millisecond}
	for _, protocol := range Protocols() {
		t.Run(protocol, func(t *testing.T) {
			name, err := Installed(protocol)
			if err != nil {
				t.Skip(err)
			}
			dir := t.TempDir()
			s, err := Start(t.Context(), protocol, line, dir, &Options{Installed: true})
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Measure(t.Context(), 100<<10, 2, 50*time.Millisecond)
			if err != nil {
				t.Error(err)
			} else if r.Objects < 2 || r.Server != name || r.Rate > 1.1*float64(line.Up) {
				t.Errorf("%d objects at %.0f bytes/s on %s over a line of %d", r.Objects, r.Rate, r.Server, line.Up)
			}
			process := s.process
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-process.ended:
			default:
				t.Error("the server is still there")
			}
			if left, err := os.ReadDir(dir); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() != "vfs" && e.Name() != "vfsMeta" }) {
				t.Errorf("%v, %v are left", left, err)
			}
		})
	}
}
