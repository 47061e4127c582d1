package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"time"
)

// The servers that can be started, beside rclone's own: what people have.
var programs = map[string]*program{
	"ftp":    {command: "vsftpd", of: "vsftpd", configure: vsftpd},
	"sftp":   {command: "sshd", of: "openssh-server", configure: sshd},
	"webdav": {command: "nginx", of: "nginx-light and libnginx-mod-http-dav-ext", configure: nginx},
	"s3":     {command: "versitygw", of: "github.com/versity/versitygw", configure: versitygw},
}

// A program is a server that is installed on this machine.
type program struct {
	command string
	of      string // the package that has it

	// configure writes into home what the program needs to serve the directory data of home on port of loopback. It returns the arguments
	// of the command, and the place of a repository there, with a verb for the port.
	configure func(home string, port int) (args []string, place string, err error)
}

// Installed returns the name of the server for a protocol, and an error if it is not on this machine.
func Installed(protocol string) (string, error) {
	p := programs[protocol]
	if _, err := p.path(); err != nil {
		return p.command, fmt.Errorf("%s is not installed; install %s, or leave out %s with --protocols", p.command, p.of, protocol)
	}
	return p.command, nil
}

// path returns where the command is: servers are often in directories that only the system's own PATH has.
func (p *program) path() (string, error) {
	name, err := exec.LookPath(p.command)
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"} {
		if err == nil {
			break
		}
		name, err = exec.LookPath(filepath.Join(dir, p.command))
	}
	return name, err
}

// A process is a program that serves.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// start starts the program in home, and returns when its port answers.
func (p *program) start(ctx context.Context, home string) (run *process, addr, place string, err error) {
	port, err := freePort()
	if err != nil {
		return nil, "", "", err
	}
	if err := os.MkdirAll(filepath.Join(home, "data"), 0o777); err != nil {
		return nil, "", "", err
	}
	args, place, err := p.configure(home, port)
	if err != nil {
		return nil, "", "", err
	}
	path, err := p.path()
	if err != nil {
		return nil, "", "", err
	}
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		return nil, "", "", err
	}
	defer log.Close()
	run = &process{cmd: exec.Command(path, args...), log: log.Name(), ended: make(chan struct{})}
	run.cmd.Dir, run.cmd.Stdout, run.cmd.Stderr = home, log, log
	if err := run.cmd.Start(); err != nil {
		return nil, "", "", err
	}
	go func() {
		_ = run.cmd.Wait() // it ends by a signal
		close(run.ended)
	}()
	addr = fmt.Sprintf("127.0.0.1:%d", port)
	if err := run.reach(ctx, addr); err != nil {
		return nil, "", "", errors.Join(err, run.stop())
	}
	return run, addr, place, nil
}

// freePort returns a port that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// startTime is how long a server may take to start.
const startTime = 20 * time.Second

// reach waits until the process listens.
func (r *process) reach(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-r.ended:
			return fmt.Errorf("%s has ended: %s", filepath.Base(r.cmd.Path), r.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen: %w: %s", filepath.Base(r.cmd.Path), ctx.Err(), r.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail returns the end of what the process has said.
func (r *process) tail() string {
	f, err := os.Open(r.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 500
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, end-most), io.SeekStart)
	}
	text, _ := io.ReadAll(f)
	return string(text)
}

// stop ends the process, and returns when it has.
func (r *process) stop() error {
	_ = r.cmd.Process.Signal(os.Interrupt)
	select {
	case <-r.ended:
		return nil
	case <-time.After(5 * time.Second):
	}
	err := r.cmd.Process.Kill()
	<-r.ended
	return err
}

// write writes files into home.
func write(home string, files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// vsftpd lets anonymous users in, who are the user ftp if it is started by root.
func vsftpd(home string, port int) ([]string, string, error) {
	data, empty := filepath.Join(home, "data"), filepath.Join(home, "empty")
	objects := filepath.Join(data, bucket) // it refuses to serve a directory that is the user's own, but not one in it
	if err := errors.Join(os.Mkdir(empty, 0o755), os.Mkdir(objects, 0o755)); err != nil {
		return nil, "", err
	}
	config := fmt.Sprintf("listen=YES\nlisten_ipv6=NO\nlisten_address=127.0.0.1\nlisten_port=%d\nbackground=NO\nlocal_enable=NO\nanonymous_enable=YES\n"+
		"no_anon_password=YES\nwrite_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\nanon_other_write_enable=YES\nanon_world_readable_only=NO\n"+
		"anon_umask=022\nanon_root=%s\nallow_writeable_chroot=YES\nsecure_chroot_dir=%s\nxferlog_enable=NO\nseccomp_sandbox=NO\nisolate=NO\nisolate_network=NO\n"+
		"max_per_ip=0\nmax_clients=0\n", port, data, empty)
	if os.Geteuid() != 0 {
		config += "run_as_launching_user=YES\n"
	} else if err := giveTo("ftp", home, objects); err != nil {
		return nil, "", err
	}
	name := filepath.Join(home, "config")
	place := ":ftp,host=127.0.0.1,port=%s,user=anonymous,pass=" + obscured() + ":" + bucket
	return []string{name}, place, write(home, map[string]string{"config": config})
}

// giveTo makes dir the property of a user, who may go through the directories above it.
func giveTo(name, home, dir string) error {
	u, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, gid := 0, 0
	if _, err := fmt.Sscan(u.Uid+" "+u.Gid, &uid, &gid); err != nil {
		return err
	}
	return errors.Join(os.Chmod(filepath.Dir(home), 0o711), os.Chmod(home, 0o711), os.Chown(dir, uid, gid))
}

// sshd lets the user of this process in, by a key that is made for it.
func sshd(home string, port int) ([]string, string, error) {
	for _, key := range []string{"host", "client"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(home, key)).CombinedOutput(); err != nil {
			return nil, "", fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	me, err := user.Current()
	if err != nil {
		return nil, "", err
	}
	if os.Geteuid() == 0 {
		_ = os.Mkdir("/run/sshd", 0o755) // where it locks itself up; the system makes it with its own server
	}
	config := fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %s/host\nAuthorizedKeysFile %s/client.pub\nPidFile none\nUsePAM no\nStrictModes no\n"+
		"PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\nSubsystem sftp internal-sftp\n", port, home, home)
	place := fmt.Sprintf(":sftp,host=127.0.0.1,port=%%s,user=%s,key_file=%s/client:%s", me.Username, home, filepath.Join(home, "data", bucket))
	return []string{"-D", "-e", "-f", filepath.Join(home, "config")}, place, write(home, map[string]string{"config": config})
}

// nginx has WebDAV in two modules, one of which is loaded where the distribution has it.
func nginx(home string, port int) ([]string, string, error) {
	me, err := user.Current()
	if err != nil {
		return nil, "", err
	}
	var head string
	if os.Geteuid() == 0 {
		head = "user " + me.Username + ";\n"
	}
	for _, dir := range []string{"/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/opt/homebrew/lib/nginx/modules"} {
		if module := filepath.Join(dir, "ngx_http_dav_ext_module.so"); fileIsThere(module) {
			head += "load_module " + module + ";\n"
		}
	}
	config := head + fmt.Sprintf("daemon off;\npid %[1]s/pid;\nerror_log stderr;\nevents { worker_connections 256; }\n"+
		"http {\n access_log off;\n client_max_body_size 0;\n client_body_temp_path %[1]s/body;\n proxy_temp_path %[1]s/proxy;\n fastcgi_temp_path %[1]s/fastcgi;\n"+
		" uwsgi_temp_path %[1]s/uwsgi;\n scgi_temp_path %[1]s/scgi;\n"+
		" server {\n  listen 127.0.0.1:%[2]d;\n  root %[1]s/data;\n  auth_basic objects;\n  auth_basic_user_file %[1]s/users;\n"+
		"  location / {\n   dav_methods PUT DELETE MKCOL COPY MOVE;\n   dav_ext_methods PROPFIND OPTIONS;\n   create_full_put_path on;\n  }\n }\n}\n", home, port)
	place := fmt.Sprintf(":webdav,url='http://127.0.0.1:%%s/',vendor=other,user=%s,pass=%s:%s", username, obscured(), bucket)
	args := []string{"-p", home, "-e", "stderr", "-c", filepath.Join(home, "config")}
	return args, place, write(home, map[string]string{"config": config, "users": username + ":{PLAIN}" + password + "\n"})
}

func fileIsThere(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// versitygw serves a directory as S3.
func versitygw(home string, port int) ([]string, string, error) {
	args := []string{"--port", fmt.Sprintf("127.0.0.1:%d", port), "--access", username, "--secret", password, "posix", filepath.Join(home, "data")}
	place := fmt.Sprintf(":s3,provider=Other,endpoint='http://127.0.0.1:%%s',access_key_id=%s,secret_access_key='%s':%s", username, password, bucket)
	return args, place, nil
}
