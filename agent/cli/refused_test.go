package cli

import (
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/api"
)

// TestRefused lists and describes what is refused: pods that there are none of, files, objects, and edits of pods that
// run.
func TestRefused(t *testing.T) {
	a := newAgent(t, web())
	a.problems = []api.Problem{
		{
			File: "/m/new.yaml", Pod: "default/new-node", Node: "node",
			Errors: []string{"line 7: spec.containers[0].image: Required value"},
		},
		{
			File: "/m/new.yaml", Pod: "default/new-node", Node: "node",
			Errors: []string{"line 9: spec.hostUsers: Invalid value"},
		},
		{File: "/m/dns.yaml", Pod: "kube-system/dns-node", Node: "node", Errors: []string{"line 1: no"}},
		{File: "/m/torn.yaml", Node: "node", Errors: []string{"line 1: did not find expected node content"}},
		{File: "/m/cfg.yaml", Pod: `configmap "default/cfg"`, Node: "node", Errors: []string{"line 3: data: no"}},
		{
			File: "/m/evil.yaml", Pod: "default/e\x1b[31m\tvil\nline-node", Node: "node",
			Errors: []string{"line 1: metadata.name: \x1b]0;x\a"},
		},
		{
			File: "/m/web.yaml", Pod: "default/web-node", Node: "node", Kept: []string{"default/web-node"},
			Errors: []string{"line 4: spec.containers[0].image: Required value"},
		},
		{File: "/m", Directory: true, Errors: []string{"cannot be read"}},
		{File: "/m/flaw.yaml", Pod: "default/flaw-node", Node: "node", Warnings: []string{"unknown field"}},
	}
	for _, c := range []struct {
		args string
		want []string
		not  string
	}{
		{"pods", []string{
			"web-node 2/2 Running,EditRefused 0 30m", "new-node 0/0 Refused 0 <none>", "torn.yaml 0/0 " +
				"Refused", "configmap/default/cfg 0/0 Refused", "e^[[31m^Ivil^Jline-node 0/0 Refused",
		}, "dns"},
		{"pods -A", []string{"default web-node", "kube-system dns-node 0/0 Refused", "<none> torn.yaml"}, "flaw"},
		{"pods -o wide", []string{"new-node 0/0 Refused 0 <none> <none> node <none>"}, ""},
		{"pods new", []string{"new-node 0/0 Refused"}, "web"},
		{"pods web new", []string{"web-node 2/2", "new-node 0/0 Refused"}, "torn"},
		{"pods -o name", []string{"pod/web-node\n"}, "new"},
		{"describe new", []string{
			"Manifest: /m/new.yaml", "Status: Refused",
			"Problem: /m/new.yaml: line 7: spec.containers[0].image", "line 9: spec.hostUsers", "Remedy: mend /m/new.yaml",
		}, ""},
		{"describe new-node", []string{"Status: Refused"}, ""},
		{"describe torn", []string{"Name: torn.yaml", "line 1: did not find"}, ""},
		{"describe -n kube-system dns", []string{"Status: Refused"}, ""},
		{"describe web", []string{
			"Status: Running", "Problem: /m/web.yaml: line 4",
			"Remedy: the pod runs on as the manifest was before",
		}, ""},
	} {
		out, errs, err := a.run(t, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("%s: %v %s", c.args, err, errs)
		}
		for _, w := range c.want {
			if !strings.Contains(squeeze(out), w) {
				t.Errorf("%s: no %q in\n%s", c.args, w, out)
			}
		}
		if c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("%s: %q in\n%s", c.args, c.not, out)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: %q", c.args, out)
		}
	}
	if out, errs, _ := a.run(t, "pods"); strings.Contains(out, "m 0/0") || errs != "/m: cannot be read\n" {
		t.Errorf("the directory: %s, %q", out, errs)
	}
	for _, args := range []string{"logs new", "exec new -- ls", "pods -o json new"} {
		_, _, err := a.run(t, strings.Fields(args)...)
		if ExitCode(err) != ExitNotFound || !strings.HasPrefix(args, "pods") &&
			!strings.Contains(err.Error(), "/m/new.yaml is refused: line 7") {
			t.Errorf("%s: %v", args, err)
		}
	}
}
