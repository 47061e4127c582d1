package dedupfs_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/dedupfs/dedupfs/"

// below says for each package which of ours it may import. Arrows point down
// only (docs/architecture.md); a package that is not here is a wall that nobody
// has planned.
var below = map[string][]string{
	"chunking":            {},
	"remote":              {},
	"limit":               {},
	"remote/remotetest":   {"remote"},
	"store/internal/seal": {},
	"store":               {"chunking", "store/internal/seal", "remote"},
	"store/storetest":     {"store", "remote"},
	"store/tree":          {"store"},
	"cache":               {"store", "remote"},
	"cache/cachetest":     {"cache"},
	"fs":                  {"cache", "store/tree", "store", "chunking", "remote"},
	"fs/fusefs":           {"fs", "store", "remote"},
	"experiment":          {"store/tree", "store", "chunking", "remote"},
	"experiment/upload":   {"experiment", "remote"},
	"cmd/dedupfs":         {"experiment", "experiment/upload", "limit", "fs/fusefs", "fs", "cache", "store", "chunking", "remote"},
	"bench/fs":            {},
	"bench/limit":         {"experiment"},
	"bench/store":         {"experiment", "fs", "cache", "store", "remote"},
	"e2e":                 {},
}

func TestImportsPointDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "slim", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for in := json.NewDecoder(strings.NewReader(string(out))); in.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := in.Decode(&p); err != nil {
			t.Fatal(err)
		}
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours {
			continue
		}
		seen++
		checkImports(t, name, p.Imports)
	}
	if seen < len(below) {
		t.Errorf("go list shows %d packages, want at least the %d planned ones", seen, len(below))
	}
}

func checkImports(t *testing.T, name string, imports []string) {
	t.Helper()
	allowed, planned := below[name]
	if !planned {
		t.Errorf("package %s is not in the plan", name)
		return
	}
	may := map[string]bool{}
	for _, other := range allowed {
		may[other] = true
	}
	for _, i := range imports {
		if other, ours := strings.CutPrefix(i, module); ours && !may[other] {
			t.Errorf("%s imports %s", name, other)
		}
	}
}
