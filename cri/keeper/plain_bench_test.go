package keeper_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/plain"
)

// BenchmarkPlain is what the agent does for the start of an ordinary container.
func BenchmarkPlain(b *testing.B) {
	p := newPod(b)
	d := &dice{t: b, p: p}
	spec := p.spec("c", "/bin/sleep", "1000")
	profile, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		b.Fatal(err)
	}
	spec.Linux.Seccomp = profile
	spec.Linux.Resources = &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}, Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
		CPU: &specs.LinuxCPU{Shares: new(uint64(102)), Quota: new(int64(10000)), Period: new(uint64(100000))},
	}
	c := p.container(spec)
	if _, err := p.Run(b.Context(), c); err != nil {
		b.Fatal(err)
	}
	d.dir = p.dir
	m, err := machine()
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		text, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
		if err != nil {
			b.Fatal(err)
		}
		var s specs.Spec
		if err := json.Unmarshal(text, &s); err != nil {
			b.Fatal(err)
		}
		id := "b" + strconv.Itoa(i)
		s.Linux.CgroupsPath = groupsPath(id)
		start, err := plain.Of(&s, m)
		if err == nil {
			err = start.Prepare(&s, c.Bundle, c.StateDir)
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		removeGroup(id)
		b.StartTimer()
	}
}
