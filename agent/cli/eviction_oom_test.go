package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/cgroups/oom"
	"github.com/berth-node/berth/eviction"
)

// TestOOM shows a report with all that is known of a kill and one with hardly anything, of processes that are called
// anything.
func TestOOM(t *testing.T) {
	const evil = "x\x1b[2J\u202e\nthen: fine"
	a := newAgent(t, web())
	at := time.Now().Add(-time.Minute)
	full := oom.Report{
		Source: oom.FromLog, Count: 30, Before: 2, Namespace: "default", Pod: "gone-node", UID: "1", Container: "main", LimitName: "the pod",
		Kill: oom.Kill{
			Time: at, Pid: 7, Comm: evil, Anon: 20 << 20, Constraint: "CONSTRAINT_MEMCG", Group: "/k/a", LimitGroup: "/k", Usage: 32 << 20, Limit: 32 << 20,
			Dump: &oom.Dump{
				Invoker: evil, Group: "/k", Partial: true, Others: 9, Counters: []oom.Counter{{Name: "memory", Usage: 32 << 20, Limit: 32 << 20, Failures: 4}},
				ByType: map[string]int64{"anon": 20 << 20, "file": 0}, Tasks: []oom.Task{{Pid: 7, RSS: 21 << 20, Comm: evil, ScoreAdj: 999}, {Pid: 8, Comm: "sh"}},
			},
		},
		Others: []oom.Kill{{Pid: 8, Comm: "sh"}}, After: &oom.After{State: oom.Ended, ExitCode: 137, Reason: evil},
		Groups: []oom.Figures{{Time: at.Add(time.Millisecond), Group: "/k/a", Usage: 1 << 20, Limit: 32 << 20, Peak: 31 << 20, Kills: 32}},
		Node:   &oom.NodeFigures{Time: at.Add(time.Second), Available: 1 << 30},
	}
	poor := oom.Report{Source: oom.FromStatus, Count: 1, Namespace: "other", Pod: "web-node", Kill: oom.Kill{Time: at}}
	a.mux.HandleFunc("GET /eviction/oom", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode([]oom.Report{full, poor})
	})
	a.mux.HandleFunc("GET /eviction/decisions", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode([]eviction.Decision{
			{Time: at, Pod: eviction.Name{Namespace: "default", Name: "past-node"}},
			{Time: at, Pod: eviction.Name{Namespace: "default", Name: "past-node"}},
			{Time: at},
			{Time: at, Pod: eviction.Name{Namespace: "other", Name: "else-node"}, Result: eviction.Result{Error: "no"}},
		})
	})
	for args, want := range map[string][]string{
		"eviction oom gone": {
			"default/gone-node, container main", "the pod used 32Mi of its limit of 32Mi; 30 processes were killed in all", "of the 11 processes that could go it had the most, 21Mi",
			"with it: process 8 (sh)", "with it: 28 more", "before: 2 were", "then: the container ended, exit code 137, x", "known from: kernel log", "its beginning was overwritten",
			"memory: 32Mi, limit 32Mi, reached 4 times", "by type: anon 20Mi\n", "and 9 others", "files of /k/a, 1ms later: usage 1Mi, limit 32Mi, peak 31Mi", "node, 1s later: 1Gi available",
		},
		"eviction oom":                        {"other/web-node", "known from: container status", "then: that is not known yet"},
		"eviction oom gone -o json":           {`"oomScoreAdj": 999`},
		"__complete eviction oom ":            {"gone-node\tkilled 60s ago\n:4"},
		"__complete eviction oom -n other ":   {"web-node\tkilled 60s ago\n:4"},
		"__complete eviction why ":            {"past-node\tevicted 60s ago\n:4"},
		"__complete eviction why -n other ":   {"else-node\twas to go 60s ago\n:4"},
		"__complete eviction why past-node x": {":4"},
	} {
		out, errs, err := a.run(t, strings.Split(args, " ")...)
		if err != nil {
			t.Errorf("%s: %v %s", args, err, errs)
		}
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(squeeze(out), "61s", "60s"), w) {
				t.Errorf("%s: no %q in\n%s", args, w, out)
			}
		}
		if !strings.HasSuffix(args, "json") && (strings.Contains(out, "\x1b") || strings.Contains(out, "\u202e") || strings.Contains(out, "\nthen: fine")) {
			t.Errorf("%s: a terminal is steered by %q", args, out)
		}
	}
	if _, _, err := a.run(t, "eviction", "oom", "nobody"); ExitCode(err) != ExitNotFound {
		t.Errorf("a pod of which nothing is known: %v", err)
	}
}
