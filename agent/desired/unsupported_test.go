package desired

import (
	"strings"
	"testing"
)

func TestUnsupportedPathsExist(t *testing.T) {
	for _, e := range append(append([]entry(nil), unsupported...), ignoredFields...) {
		want := 1
		if strings.HasPrefix(e.path, "spec.containers[*]") {
			want = 3 // init and ephemeral containers
		}
		if e.reason == "" || len(rules([]entry{e})) != want {
			t.Errorf("%s: no such field, or no reason", e.path)
		}
	}
}
