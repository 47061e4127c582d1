//go:build linux

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"
	"time"
)

// sftpURL starts an OpenSSH server of its own on loopback, with its own configuration and keys, and returns the URL of dir there.
func sftpURL(t *testing.T, dir string) string {
	t.Helper()
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs an SSH server: install openssh-server")
	}
	home := t.TempDir()
	for _, key := range []string{"host", "client"} {
		runTool(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(home, key))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %s/host\nAuthorizedKeysFile %s/client.pub\nPidFile none\n"+
		"UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\n"+
		"Subsystem sftp internal-sftp\n", port, home, home)
	public, err := os.ReadFile(filepath.Join(home, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config": config, "known": fmt.Sprintf("[127.0.0.1]:%d %s", port, public)} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 && os.Mkdir("/run/sshd", 0o755) == nil { // where it wants to lock itself up
		t.Cleanup(func() { os.Remove("/run/sshd") })
	}
	log := &tail{}
	cmd := exec.Command(sshd, "-D", "-e", "-f", filepath.Join(home, "config"))
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("sshd:\n%s", log)
		}
	})
	(&world{t: t}).eventually(10*time.Second, "reach sshd", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return fmt.Sprintf(":sftp,host=127.0.0.1,port=%d,user=%s,key_file=%s/client,known_hosts_file=%s/known:%s", port, me.Username, home, home, dir)
}

// TestSFTP has two machines work on a repository behind SFTP: a git repository in turn, conflicts, and a new machine at last.
func TestSFTP(t *testing.T) {
	needFUSE(t)
	w := emptyWorld(t)
	w.url = sftpURL(t, w.url)
	a, b := w.machine("a"), w.machine("b")
	a.must("init", "-q", w.url)
	for _, m := range []*machine{a, b} {
		m.mount("--poll=1h")
	}
	a.sh("git init -q r && cd r && git config user.email a@b && git config user.name x && git config gc.auto 0")
	for i := range 2 {
		for _, m := range []*machine{a, b} {
			m.must("sync", m.mnt)
			m.sh(fmt.Sprintf("cd r && echo %d %s >>log && git add log && git commit -qm %d && git fsck --full", i, filepath.Base(m.mnt), i))
			m.must("sync", m.mnt)
		}
	}
	agree(t, a, b)
	a.sh("cd r && test $(git log --oneline | wc -l) = 4 && test -z \"$(git status --porcelain)\"")
	a.sh("echo a >f; mkdir d; echo 1 >d/1")
	b.sh("echo b >f; mkdir d; echo 2 >d/2")
	agree(t, a, b)
	if got := a.contents("f"); len(got) != 2 {
		t.Errorf("contents of f: %q", got)
	}
	want := describe(t, a.mnt)
	end(a, b)
	c := w.machine("c")
	c.mount()
	sameTree(t, want, describe(t, c.mnt))
	c.umount()
}
