package manifest

import (
	"runtime"
	"strings"
	"testing"
)

// TestAliases resolves none that would fill the memory: what is refused has not been written out before.
func TestAliases(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct{ text, want string }{
		"of a long value": {"a: &a " + long + "\nb: [" + strings.Repeat("*a,", 1000) + "]\n", "aliases resolved"},
		"as keys": {
			"a: &a " + long + "\nb: {" + strings.Repeat("c: {*a : 1},", 1000) + "}\n",
			"aliases resolved",
		},
		"merged": {
			"a: &a {k: " + long + "}\nb: [" + strings.Repeat("{<<: *a},", 1000) + "]\n",
			"aliases resolved",
		},
		"of aliases": {
			"a: &a " + long + "\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nd: [*c,*c,*c,*c]\n",
			"aliases resolved",
		},
		"after an anchor again": {
			"a: &a x\nb: &a " + long + "\nc: [" + strings.Repeat("*a,", 1000) + "]\n",
			"aliases resolved",
		},
		"before an anchor again": {"a: &a x\nb: [" + strings.Repeat("*a,", 1000) + "]\nc: &a " + long + "\n", "apiVersion"},
		"inside of itself":       {"a: &a [*a]\n", ""},
		"as a pod may have them": {
			strings.Replace(podYAML("a", "nginx:1"), "name: a", "name: &a a\n  labels: {app: *a}", 1),
			"-",
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		docs := decode([]byte(c.text))
		runtime.ReadMemStats(&after)
		got := strings.Join(docs[0].errors, "; ")
		if c.want == "-" && got != "" || c.want != "-" && (got == "" || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %.300s, want %s", name, got, c.want)
		}
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 200 {
			t.Errorf("%s: took %d MB", name, used)
		}
	}
}
