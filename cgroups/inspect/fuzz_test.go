package inspect

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/berth-node/berth/cgroups"
)

// A capture comes from another machine, and may be anything: whatever it says, every command answers.
func FuzzCapture(f *testing.F) {
	for _, mode := range []cgroups.Mode{cgroups.Unified, cgroups.Hybrid} {
		s := kubeletNode()
		s.Version, s.Machine.Mode, s.Machine.Memory = snapshotVersion, mode, 1<<30
		s.Pods = fixturePods()
		s.Processes = map[int]Process{7: {Comm: "sleep", OOMScore: 600, OOMScoreAdj: 3}}
		g := s.Groups[staticGroup]
		g.Pids = []int{7}
		s.Groups[staticGroup] = g
		data, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "cpu.stat:nr_periods=count,memory.stat:anon=bytes,cpu.max#0")
	}
	f.Add([]byte(`{"version":1,"groups":{"/kubepods":{"files":{"memory.max":"-1","cpu.max":"0 0"}},"/kubepods/pod":{},"/kubepods/podx//":{}}}`), "cpu")
	f.Fuzz(func(t *testing.T, data []byte, columns string) {
		s, err := decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		a := app{}
		if cols, _, err := a.columns("", columns, ""); err == nil {
			_ = printTree(io.Discard, s.nodes(), cols, 0)
		}
		for _, n := range s.nodes().all() {
			_ = printValues(io.Discard, n, n.values(s.Machine.Options))
			_ = explain(n, byUsage).print(io.Discard)
		}
		_ = printProblems(io.Discard, s, audit{s, s.Machine.Options}.problems())
		_, _ = s.nodes().find("7")
		_, _ = s.nodes().find("/kubepods/pod")
		_, _ = s.nodes().lookup("web/nginx")
	})
}
