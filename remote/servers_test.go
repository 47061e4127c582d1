//go:build servers

package remote_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	_ "github.com/rclone/rclone/cmd/serve/ftp"
	_ "github.com/rclone/rclone/cmd/serve/s3"
	_ "github.com/rclone/rclone/cmd/serve/sftp"
	_ "github.com/rclone/rclone/cmd/serve/webdav"
	"github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/config/obscure"
	"github.com/rclone/rclone/fs/rc"
)

// servers are real ones on loopback, each over a local directory. url makes the
// repository's from the address of the server and a password.
var servers = []struct {
	name   string
	params rc.Params
	url    func(host, port, pass string) string
}{
	{"webdav", rc.Params{"user": "u", "pass": "right horse"}, func(host, port, pass string) string {
		return fmt.Sprintf(":webdav,url='http://%s:%s/',vendor=other,user=u,pass=%s:repo", host, port, pass)
	}},
	{"sftp", rc.Params{"user": "u", "pass": "right horse"}, func(host, port, pass string) string {
		return fmt.Sprintf(":sftp,host=%s,port=%s,user=u,pass=%s:repo", host, port, pass)
	}},
	{"ftp", rc.Params{"user": "u", "pass": "right horse", "vfs_cache_mode": "writes"}, func(host, port, pass string) string {
		return fmt.Sprintf(":ftp,host=%s,port=%s,user=u,pass=%s:repo", host, port, pass)
	}},
	{"s3", rc.Params{"opt": rc.Params{"AuthKey": []string{"user,right horse"}}, "vfs_cache_mode": "writes"}, func(host, port, pass string) string {
		return fmt.Sprintf(":s3,provider=Rclone,endpoint='http://%s:%s',access_key_id=user,secret_access_key='%s':repo",
			host, port, obscure.MustReveal(pass))
	}},
}

// serve starts a server of the kind name on dir and returns its address.
func serve(t *testing.T, name, dir string, params rc.Params) (host, port string) {
	t.Helper()
	in := params.Copy()
	in["type"], in["fs"], in["addr"] = name, dir, "127.0.0.1:0"
	if name == "ftp" { // it does not tell which port it got
		in["addr"] = freeAddr(t)
	}
	asked := in["addr"].(string)
	out, err := rc.Calls.Get("serve/start").Fn(t.Context(), in)
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		if _, err := rc.Calls.Get("serve/stop").Fn(t.Context(), rc.Params{"id": out["id"]}); err != nil {
			t.Logf("stop %s: %v", name, err)
		}
	})
	addr := out["addr"].(string)
	if name == "ftp" {
		addr = asked
	}
	host, port, err = net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestServers runs the suite over the wire, with one server per subtest.
func TestServers(t *testing.T) {
	ownCache(t)
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			remotetest.TestStorage(t, func(t *testing.T) remote.Storage {
				dir := t.TempDir()
				host, port := serve(t, server.name, dir, server.params)
				r := open(t, server.url(host, port, obscure.MustObscure("right horse")), &remote.Options{
					Create:  true,
					OnRetry: func(_, _ string, err error, d time.Duration) { t.Logf("again in %v: %v", d, err) },
				})
				t.Cleanup(func() { noTemps(t, dir) })
				return r
			})
		})
	}
}

// ownCache keeps what the servers cache out of the user's home.
func ownCache(t *testing.T) {
	old := config.GetCacheDir()
	if err := config.SetCacheDir(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = config.SetCacheDir(old) })
}

// noTemps checks that no half-written object was left.
func noTemps(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if remote.IsTemp(path) {
			t.Errorf("%s was left behind", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestServersRefuse checks that a wrong password is told apart from a bad day,
// and a server that is away from both.
func TestServersRefuse(t *testing.T) {
	ownCache(t)
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			host, port := serve(t, server.name, t.TempDir(), server.params)
			o := &remote.Options{Retries: 2}
			check(t, server.url(host, port, obscure.MustObscure("wrong horse")), o, remote.ErrAuth)
			host, port, _ = net.SplitHostPort(freeAddr(t))
			check(t, server.url(host, port, obscure.MustObscure("right horse")), o, remote.ErrUnreachable)
		})
	}
}

// check opens url and lists it, and wants one of the two to fail with want.
func check(t *testing.T, url string, o *remote.Options, want error) {
	t.Helper()
	r, err := remote.Open(t.Context(), url, o)
	if err == nil {
		err = r.List(t.Context(), "", func(remote.Entry) error { return nil })
	}
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	if err != nil && strings.Contains(err.Error(), "horse") {
		t.Errorf("error tells the password: %v", err)
	}
}
