package inspect

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/cgroups/kube"
)

// Pin is what one container was given for itself, as the kernel writes lists: "2-3".
type Pin struct {
	CPUs string `json:"cpus,omitempty"` // nobody else runs on them, and it has no quota
	Mems string `json:"mems,omitempty"` // memory nodes
}

// Pins are those of a pod's containers, by name.
type Pins map[string]Pin

// pins reads what the managers of CPUs and memory have given out: the agent's own file, or kubelet's states.
func (l Live) pins(s *Snapshot) error {
	s.Pins = map[string]Pins{}
	for _, f := range []struct {
		path string
		read func(data []byte, s *Snapshot) error
	}{
		{l.PinsFile, ownPins},
		{filepath.Join(l.KubeletDir, "cpu_manager_state"), kubeletCPUs},
		{filepath.Join(l.KubeletDir, "memory_manager_state"), kubeletMemory},
	} {
		data, err := os.ReadFile(f.path)
		if err != nil || f.path == "" {
			continue // nothing is pinned, or we may not see it
		}
		if err := f.read(data, s); err != nil {
			return fmt.Errorf("read %s: %w", f.path, err)
		}
	}
	return nil
}

// pin gives a container of a pod that has a group here what the file says.
func (s *Snapshot) pin(uid, container string, set func(*Pin)) {
	if !s.hasPod(uid) {
		return // gone, and forgotten soon
	}
	if s.Pins[uid] == nil {
		s.Pins[uid] = Pins{}
	}
	p := s.Pins[uid][container]
	set(&p)
	s.Pins[uid][container] = p
}

// block is memory that a container was promised.
type block struct {
	Nodes []int `json:"nodes"`
	Mask  []int `json:"numaAffinity"` // kubelet's word for the same
}

func (p *Pin) join(blocks []block) {
	nodes := cpuset.New()
	for _, b := range blocks {
		nodes = nodes.Union(cpuset.New(append(b.Nodes, b.Mask...)...))
	}
	p.Mems = nodes.String()
}

// ownPins reads the agent's file. Containers of the start only, whose CPUs the others of the pod have after them, are
// in it too.
func ownPins(data []byte, s *Snapshot) error {
	var file struct {
		Pods []struct {
			UID        string `json:"uid"`
			Containers []struct {
				Container string  `json:"container"`
				CPUs      string  `json:"cpus"`
				Memory    []block `json:"memory"`
			} `json:"containers"`
		} `json:"pods"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	for _, p := range file.Pods {
		for _, c := range p.Containers {
			s.pin(p.UID, c.Container, func(pin *Pin) { pin.CPUs = c.CPUs; pin.join(c.Memory) })
		}
	}
	return nil
}

func kubeletCPUs(data []byte, s *Snapshot) error {
	var file struct {
		Entries map[string]map[string]string `json:"entries"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	for uid, containers := range file.Entries {
		for name, cpus := range containers {
			s.pin(uid, name, func(pin *Pin) { pin.CPUs = cpus })
		}
	}
	return nil
}

func kubeletMemory(data []byte, s *Snapshot) error {
	var file struct {
		Entries map[string]map[string][]block `json:"entries"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	for uid, containers := range file.Entries {
		for name, blocks := range containers {
			s.pin(uid, name, func(pin *Pin) { pin.join(blocks) })
		}
	}
	return nil
}

// pin is the container's own, "" where it shares with all others.
func (n *Node) pin() Pin { return n.snap.Pins[n.UID][n.Title] }

// exclusive says whether the container, or one of the pod's, has CPUs of its own.
func (n *Node) exclusive() bool {
	if n.Kind == kindContainer {
		return n.pin().CPUs != ""
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(n.snap.Pins[n.UID])), func(p Pin) bool { return p.CPUs != "" })
}

// pinned are the settings that come from the managers of CPUs and memory, over those of the specification.
func (n *Node) pinned(want []kube.Setting) []kube.Setting {
	if n.exclusive() {
		for i := range want {
			if f := want[i].File; f == "cpu.cfs_quota_us" || f == "cpu.max" {
				want[i].Computed = "no quota: it has CPUs of its own"
				if n.Kind == kindPod {
					want[i].Computed = "no quota: a container has CPUs of its own"
				}
			}
		}
	}
	if n.Kind != kindContainer {
		return want
	}
	p := n.pin()
	for _, s := range []kube.Setting{
		{Field: "requests." + string(corev1.ResourceCPU), Computed: "exclusive CPUs by the CPU manager", File: "cpuset.cpus", Want: p.CPUs},
		{Field: "requests." + string(corev1.ResourceMemory), Computed: "nodes by the memory manager", File: "cpuset.mems", Want: p.Mems},
	} {
		if s.Want != "" {
			want = append(want, s)
		}
	}
	return want
}

// overlaps are containers that may run on CPUs that another has for itself.
func (a audit) overlaps() []Problem {
	owners := map[string]cpuset.CPUSet{}
	var containers []*Node
	for _, n := range a.snap.nodes().all() {
		if n.Kind != kindContainer {
			continue
		}
		containers = append(containers, n)
		if own, err := cpuset.Parse(n.pin().CPUs); err == nil && !own.IsEmpty() {
			owners[n.Path] = own
		}
	}
	var out []Problem
	for _, n := range containers {
		may, err := cpuset.Parse(n.effectiveCPUs())
		if err != nil || n.Title == sandboxName {
			continue // the pod's own process sleeps
		}
		for _, o := range containers {
			own, ok := owners[o.Path]
			// Containers that run one after the other share what their pod was given.
			if !ok || o.Path == n.Path || o.UID == n.UID && !owners[n.Path].IsEmpty() {
				continue
			}
			if both := may.Intersection(own); !both.IsEmpty() {
				out = append(out, Problem{"overlap", n.Path, n.topName(), fmt.Sprintf("may run on CPUs %s, which %s has for itself", both, o.topName())})
			}
		}
	}
	return out
}

// cpusetFiles say which CPUs a group may run on, the first that there is.
func cpusetFiles() []string {
	return []string{"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"}
}

func (n *Node) effectiveCPUs() string {
	for _, f := range cpusetFiles() {
		if v := n.files.file(f); v != "" {
			return v
		}
	}
	return ""
}
