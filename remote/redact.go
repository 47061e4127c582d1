package remote

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/config/obscure"
	"github.com/rclone/rclone/fs/fspath"
)

const mask = "***"

var (
	// secretKey matches names of parameters whose values nobody should see.
	secretKey = regexp.MustCompile(`(?i)pass|secret|token|key|auth|credential|cookie|sas|bearer|session|header|otp|2fa|connection_string`)
	// userInfo matches the password in scheme://user:password@host.
	userInfo = regexp.MustCompile(`(://[^/@:\s]*:)[^/\s]*@`)
	// secretParam matches secrets where they stand as parameters in a text.
	secretParam = regexp.MustCompile(`(?i)([\w.-]*(?:pass|secret|token|signature|credential|sig|auth|api_?key)[\w.-]*["']?[=:]\s*["']?)[^\s&"',:;]+`)
	bearer      = regexp.MustCompile(`(?i)\b(bearer|basic) [\w.~+/=-]{8,}`)
)

// Redact returns a repository URL with the values of secret parameters masked,
// fit for messages and logs.
func Redact(url string) string {
	parsed, err := fspath.Parse(url)
	if err != nil {
		if head, _, cut := strings.Cut(url, ","); cut {
			return maskText(head + "," + mask)
		}
		return maskText(url)
	}
	if parsed.Name == "" {
		return url
	}
	var b strings.Builder
	b.WriteString(parsed.Name)
	for _, key := range slices.Sorted(maps.Keys(parsed.Config)) {
		b.WriteString("," + key + "=" + showValue(key, parsed.Config[key]))
	}
	b.WriteString(":" + parsed.Path)
	return userInfo.ReplaceAllString(b.String(), "${1}"+mask+"@") // sftp://user:pass@host is a mistake often made
}

func showValue(key, value string) string {
	if isSecret(key) {
		return mask
	}
	value = maskText(value)
	if strings.ContainsAny(value, `,:'"`) {
		value = "'" + strings.ReplaceAll(value, "'", "''") + "'"
	}
	return value
}

// isSecret reports whether the parameter key holds a secret and not the place
// of one.
func isSecret(key string) bool {
	return secretKey.MatchString(key) && !strings.HasSuffix(strings.ToLower(key), "_file")
}

// maskText masks what looks like a secret in a text of unknown origin.
func maskText(s string) string {
	s = userInfo.ReplaceAllString(s, "${1}"+mask+"@")
	s = bearer.ReplaceAllString(s, "${1} "+mask)
	return secretParam.ReplaceAllString(s, "${1}"+mask)
}

// scrub knows the secrets of this process's configuration. It is global as the
// configuration and the log of rclone are, which it serves.
var scrub scrubber

// A scrubber masks secrets that it was told of, wherever they stand.
type scrubber struct {
	mu      sync.Mutex // guards secrets
	secrets []string   // longest first
}

// text returns s with all secrets masked.
func (c *scrubber) text(s string) string {
	c.mu.Lock()
	secrets := c.secrets
	c.mu.Unlock()
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, mask)
	}
	return maskText(s)
}

// add makes known the value of a parameter, as it stands in a configuration.
// Values below four bytes would mask half of every text, and are let be.
func (c *scrubber) add(key, value string) {
	if !isSecret(key) {
		return
	}
	values := []string{value}
	if plain, err := obscure.Reveal(value); err == nil {
		values = append(values, plain)
	}
	var token map[string]any
	if json.Unmarshal([]byte(value), &token) == nil {
		for k, v := range token {
			if s, ok := v.(string); ok && isSecret(k) {
				values = append(values, s)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := slices.Clone(c.secrets) // readers may hold the old one
	for _, v := range values {
		if len(v) >= 4 && v != "true" && v != "false" && !slices.Contains(known, v) {
			known = append(known, v)
		}
	}
	slices.SortStableFunc(known, func(a, b string) int { return len(b) - len(a) })
	c.secrets = known
}

// learn makes known the secrets in a repository URL, in the environment, and in
// the configuration file, which has been loaded.
func (c *scrubber) learn(url string) {
	if parsed, err := fspath.Parse(url); err == nil {
		for key, value := range parsed.Config {
			c.add(key, value)
		}
	}
	for _, kv := range os.Environ() {
		if key, value, _ := strings.Cut(kv, "="); strings.HasPrefix(key, "RCLONE_") && value != "" {
			c.add(key, value)
		}
	}
	data := config.LoadedData()
	for _, section := range data.GetSectionList() {
		for _, key := range data.GetKeyList(section) {
			if value, ok := data.GetValue(section, key); ok {
				c.add(key, value)
			}
		}
	}
}
