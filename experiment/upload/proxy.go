package upload

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/experiment"
)

// A Proxy passes TCP connections on to a server over a line: all connections share its speed in each direction, everything comes
// half a latency later, and a connection needs a latency to be made. It knows how a long line behaves, not how TCP gets up to
// speed on one.
type Proxy struct {
	line     experiment.Line
	up, down lane
	ftp      bool // answers to EPSV name a port that must lead through the proxy too

	mu    sync.Mutex // guards all below
	open  map[io.Closer]bool
	ended bool
	wg    sync.WaitGroup
}

// lane is one direction of a line.
type lane struct {
	rate int64 // bytes per second

	mu   sync.Mutex
	free time.Time // when all that was given to it has gone
}

// send returns when n bytes have gone into the lane.
func (l *lane) send(n int) {
	l.mu.Lock()
	l.free = later(l.free, time.Now()).Add(time.Duration(float64(n) / float64(l.rate) * float64(time.Second)))
	gone := l.free
	l.mu.Unlock()
	time.Sleep(time.Until(gone))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// NewProxy returns a Proxy for a line. With ftp it follows the data connections of FTP.
func NewProxy(line experiment.Line, ftp bool) *Proxy {
	return &Proxy{line: line, up: lane{rate: line.Up}, down: lane{rate: line.Down}, ftp: ftp, open: map[io.Closer]bool{}}
}

// Listen passes on to target what connects to the address that it returns, until Close.
func (p *Proxy) Listen(target string) (addr string, err error) {
	return p.listen(target, p.ftp)
}

func (p *Proxy) listen(target string, control bool) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	if !p.keep(l) {
		return "", net.ErrClosed
	}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if p.keep(c) {
				p.wg.Go(func() { p.connect(c, target, control) })
			}
		}
	})
	return l.Addr().String(), nil
}

// keep has Close close c. It reports false, and closes it, if that has happened already.
func (p *Proxy) keep(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		c.Close()
		return false
	}
	p.open[c] = true
	return true
}

func (p *Proxy) drop(c io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	c.Close()
}

// Close ends all connections and returns when none is left.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.ended = true
	for c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// connect serves one connection.
func (p *Proxy) connect(client net.Conn, target string, control bool) {
	defer p.drop(client)
	time.Sleep(p.line.Latency) // the handshake
	server, err := net.Dial("tcp", target)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	var both sync.WaitGroup
	both.Go(func() { p.pass(server, client, &p.up) })
	if control {
		both.Go(func() { p.passControl(client, server) })
	} else {
		both.Go(func() { p.pass(client, server, &p.down) })
	}
	both.Wait()
}

// piece is a stretch of bytes under way.
type piece struct {
	data []byte
	due  time.Time
}

const (
	pieceSize = 16 << 10
	underWay  = 256 // pieces
)

// pass passes bytes on until src ends.
func (p *Proxy) pass(dst net.Conn, src io.Reader, l *lane) {
	queue := make(chan piece, underWay)
	var writer sync.WaitGroup
	writer.Go(func() { deliver(dst, queue) })
	for {
		b := make([]byte, pieceSize)
		n, err := src.Read(b)
		if n > 0 {
			l.send(n)
			queue <- piece{b[:n], time.Now().Add(p.line.Latency / 2)}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	writer.Wait()
}

// deliver writes pieces when they are due, and then ends its side of the connection.
func deliver(dst net.Conn, queue <-chan piece) {
	for q := range queue {
		time.Sleep(time.Until(q.due))
		if _, err := dst.Write(q.data); err != nil {
			dst.Close()
		}
	}
	if half, ok := dst.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}

// passive finds the port in an answer to EPSV.
var passive = regexp.MustCompile(`^229 .*\(\|\|\|(\d+)\|\)`)

// passControl passes the answers of an FTP server on, and leads its data connections through the proxy.
func (p *Proxy) passControl(client net.Conn, server net.Conn) {
	in, out := io.Pipe()
	var rest sync.WaitGroup
	rest.Go(func() { p.pass(client, in, &p.down) })
	host, _, _ := net.SplitHostPort(server.RemoteAddr().String())
	lines := bufio.NewReader(server)
	for {
		line, err := lines.ReadString('\n')
		if m := passive.FindStringSubmatch(line); m != nil {
			if addr, err := p.listen(net.JoinHostPort(host, m[1]), false); err == nil {
				_, port, _ := net.SplitHostPort(addr)
				line = strings.Replace(line, m[1], port, 1)
			}
		}
		if _, werr := fmt.Fprint(out, line); werr != nil || err != nil {
			break
		}
	}
	out.Close()
	rest.Wait()
}
