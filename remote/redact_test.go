package remote

import (
	"strings"
	"testing"

	"github.com/rclone/rclone/fs/config/obscure"
)

func TestRedact(t *testing.T) {
	for _, test := range []struct{ url, want string }{
		{"/a/local/path", "/a/local/path"},
		{"relative", "relative"},
		{"gdrive:home", "gdrive:home"},
		{":sftp,host=h,user=u,pass=abc:dir", ":sftp,host=h,pass=***,user=u:dir"},
		{":sftp,host=h,key_file=/k,pass='a,b:c''d':dir", ":sftp,host=h,key_file=/k,pass=***:dir"},
		{"s3,access_key_id=AK,secret_access_key=S:bucket/x", "s3,access_key_id=***,secret_access_key=***:bucket/x"},
		{":webdav,url='https://u:pw@h/x':", ":webdav,url='https://u:***@h/x':"},
		{":sftp,pass='unterminated:dir", ":sftp,***"},
		{"sftp://u:pw@host/dir", "sftp://u:***@host/dir"},
	} {
		if got := Redact(test.url); got != test.want {
			t.Errorf("Redact(%s) = %s, want %s", test.url, got, test.want)
		}
	}
}

func TestScrub(t *testing.T) {
	var c scrubber
	c.add("pass", obscure.MustObscure("correct horse"))
	c.add("token", `{"access_token":"AAAABBBB","refresh_token":"CCCCDDDD","expiry":"2030"}`)
	c.add("user", "visible")
	c.add("pass", "abc")
	got := c.text("correct horse and AAAABBBB, CCCCDDDD for visible until 2030; abc stays; Bearer abcdefgh123")
	if want := "*** and ***, *** for visible until 2030; abc stays; Bearer ***"; got != want {
		t.Errorf("text = %q, want %q", got, want)
	}
}

// FuzzRedact checks that no password shows, however the URL is quoted.
func FuzzRedact(f *testing.F) {
	f.Add("secret123", "dir", true)
	f.Add("a,b:c'd\"e=", "x:y", true)
	f.Add("://u:p@h", "", false)
	f.Fuzz(func(t *testing.T, pass, path string, quote bool) {
		value := pass
		if quote {
			value = "'" + strings.ReplaceAll(pass, "'", "''") + "'"
		}
		url := ":sftp,host=h,pass=" + value + ":" + path
		got := Redact(url)
		if len(pass) >= 6 && quote && strings.Contains(got, pass) && !strings.Contains(":sftp,host=h,pass=***:"+path, pass) {
			t.Errorf("Redact(%q) = %q shows %q", url, got, pass)
		}
		if again := Redact(got); len(again) > 2*len(got)+100 {
			t.Errorf("Redact grows: %q to %q", got, again)
		}
		maskText(url)
	})
}
