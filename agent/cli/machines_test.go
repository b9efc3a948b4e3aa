package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/cgroups/oom"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
)

// TestOutputForMachines wants of every command with -o one object with the version of its schema, [] where there is
// nothing, null where there is no limit, a unit with each amount, and nothing that steers a terminal, as JSON and YAML.
func TestOutputForMachines(t *testing.T) {
	const evil = "x\x1b[2J\u009b2J"
	a := newAgent(t, web())
	answer := func(pattern string, v any) {
		a.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(v) })
	}
	answer("GET /eviction", map[string]any{"unknown": evil})
	answer("GET /eviction/rank", []rank.Line{{Pod: rank.Pod{Name: evil, Usage: 5}}})
	answer("GET /eviction/simulate", nil)
	answer("GET /eviction/decisions", []eviction.Decision{{Signal: "pid.available", Message: evil}})
	answer("GET /eviction/oom", []oom.Report{{Groups: []oom.Figures{{Usage: 1}}, Kill: oom.Kill{Comm: evil, Dump: &oom.Dump{Counters: []oom.Counter{{Name: "memory"}}}}}})
	answer("GET /volumes", api.VolumeState{Drivers: []api.VolumeDriver{{Name: evil}}, Mounts: []api.VolumeMount{{Name: "v", Capacity: 3}}})
	answer("GET /volumes/check", nil)
	answer("POST /prune", api.Pruned{})
	for args, wants := range map[string]map[string]string{
		"eviction status":              {"conditions": "[]", "signals": "[]", "stalls": "[]"},
		"eviction rank":                {"unit": `"bytes"`, "signal": `"memory.available"`, "ranked.0.pod.usage": "5"},
		"eviction simulate --memory 1": {"unit": `"bytes"`, "simulations": "[]"},
		"eviction why":                 {"decisions.0.unit": `"tasks"`, "decisions.0.ageNs": "0"},
		"eviction oom":                 {"reports.0.groups.0.limitBytes": "null", "reports.0.groups.0.swapLimitBytes": "null", "reports.0.kill.dump.counters.0.limitBytes": "null"},
		"volumes":                      {"claims": "[]", "mounts.0.pods": "[]", "mounts.0.capacityBytes": "3", "drivers.0.maxVolumes": "null"},
		"volumes check":                {"findings": "[]"},
		"volumes drivers":              {"drivers.0.connected": "false"},
		"prune":                        {"items": "[]", "bytes": "0"},
		"events":                       {"events.0.object": `"pod/web-node"`, "events.0.count": "3", "events.0.from": `"berth"`},
		"events --reason Nothing":      {"events": "[]"},
	} {
		var both [2]any
		for i, form := range []string{"json", "yaml"} {
			out, errs, err := a.run(t, append(strings.Fields(args), "-o", form)...)
			if err == nil {
				err = yaml.Unmarshal([]byte(out), &both[i]) // which JSON is
			}
			if err != nil || strings.ContainsAny(out+errs, "\x1b\u009b") {
				t.Errorf("%s -o %s: %v\n%q %q", args, form, err, out, errs)
			}
		}
		text, err := json.Marshal(both[0])
		if other, otherErr := json.Marshal(both[1]); err != nil || otherErr != nil || string(text) != string(other) {
			t.Errorf("%s: JSON has %s, YAML %s", args, text, other)
		}
		wants["schemaVersion"] = "1"
		for path, want := range wants {
			if got := dig(both[0], path); got != want {
				t.Errorf("%s: %s is %s, want %s\n%s", args, path, got, want, text)
			}
		}
		if _, _, err := a.run(t, append(strings.Fields(args), "-o", "xml")...); ExitCode(err) != ExitUsage {
			t.Errorf("%s -o xml: %v", args, err)
		}
	}
}

// dig is what a value has at a path, in JSON.
func dig(v any, path string) string {
	for step := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			one, ok := in[step]
			if !ok {
				return "not there"
			}
			v = one
		case []any:
			if len(in) == 0 {
				return "not there"
			}
			v = in[0]
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestVolumesThatAreNotThere wants those who name no claim or volume of the node to be told so by the exit code.
func TestVolumesThatAreNotThere(t *testing.T) {
	a := newAgent(t, web())
	a.mux.HandleFunc("GET /volumes", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(api.VolumeState{}) })
	none := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(map[string]any{"message": "volume default/none: there is none", "code": http.StatusNotFound})
	}
	a.mux.HandleFunc("POST /volumes/volume/default/none", none)
	a.mux.HandleFunc("DELETE /volumes/volume/default/none", none)
	for args, want := range map[string]int{
		"volumes abandon none": ExitNotFound, "volumes restore none": ExitNotFound, "volumes delete none": ExitNotFound,
		"volumes restore a/b/c": ExitUsage, "volumes delete": ExitUsage, "volumes abandn x": ExitUsage,
		"volumes restore --snapshot --group-snapshot none": ExitUsage,
	} {
		if _, _, err := a.run(t, strings.Fields(args)...); ExitCode(err) != want {
			t.Errorf("%s: exit code %d (%v), want %d", args, ExitCode(err), err, want)
		}
	}
}
