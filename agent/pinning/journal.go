package pinning

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/record"
)

// journalVersion is that of the file's format.
const journalVersion = 1

// journal is the file of the assignments. The policies are in it for people: what was given under one policy is judged by the
// machine and the configuration that are there now.
type journal struct {
	Version      int           `json:"version"`
	CPUPolicy    string        `json:"cpuPolicy"`
	MemoryPolicy string        `json:"memoryPolicy"`
	Pods         []*assignment `json:"pods"`
}

func (m *Manager) policies() (cpu, memory string) {
	cpu, memory = "none", "None"
	if m.cfg.StaticCPUs {
		cpu = "static"
	}
	if m.cfg.StaticMemory {
		memory = "Static"
	}
	return cpu, memory
}

// save replaces the file as a whole: it is what it was or what it is to be, whenever the agent is killed. It need not outlive the
// machine, where no container would either.
func (m *Manager) save() error {
	j := journal{Version: journalVersion, Pods: slices.Clone(m.pods)}
	// Containers that are still where nobody gives anything any more have to be found by the next agent too.
	for uid, a := range m.former {
		if m.find(uid) == nil {
			j.Pods = append(j.Pods, a)
		}
	}
	j.CPUPolicy, j.MemoryPolicy = m.policies()
	if err := record.Write(m.cfg.File, j); err != nil {
		return fmt.Errorf("write assignments: %w", err)
	}
	return nil
}

// load reads what an agent before this one gave out, and keeps of it what can still be had: what cannot is given anew when its
// pod is admitted, and its containers are moved. Of another policy nothing is left over, whatever was set before.
func (m *Manager) load() error {
	j, bad, err := record.Load(m.cfg.File, journalVersion, decode)
	if err != nil {
		return fmt.Errorf("read assignments: %w", err)
	}
	if bad != nil {
		m.log.Warn("assignments cannot be read and are made anew", "file", m.cfg.File, "error", bad)
	}
	if j == nil {
		return nil
	}
	for _, a := range j.Pods {
		if why := m.outdated(a); why != "" {
			m.log.Warn("what a pod was given is given anew", "pod", a.Namespace+"/"+a.Name, "uid", string(a.UID), "why", why)
			m.former[a.UID] = a
			continue
		}
		m.pods = append(m.pods, a)
	}
	return nil
}

// decode reads the file.
func decode(data []byte) (*journal, error) {
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, err
	}
	for _, a := range j.Pods {
		if a == nil || a.UID == "" {
			return nil, errors.New("a pod in it has no uid")
		}
		for i := range a.Containers {
			g := &a.Containers[i]
			if _, err := cpuset.Parse(g.CPUs); err != nil {
				return nil, fmt.Errorf("CPUs of %s: %w", a.UID, err)
			}
			for _, b := range g.Memory {
				for _, id := range b.Nodes {
					if id < 0 || id > 63 || b.Bytes < 0 {
						return nil, fmt.Errorf("memory of %s cannot be", a.UID)
					}
				}
			}
		}
	}
	return j, nil
}

// outdated says why an assignment cannot be kept beside those before it.
func (m *Manager) outdated(a *assignment) string {
	cpus := a.cpus()
	var memory bool
	for i := range a.Containers {
		memory = memory || len(a.Containers[i].Memory) > 0
	}
	cpu, mem := m.policies()
	switch gone := cpus.Difference(m.cfg.Machine.All()); {
	case !m.cfg.StaticCPUs && !cpus.IsEmpty():
		return "the policy for CPUs is " + cpu
	case !m.cfg.StaticMemory && memory:
		return "the policy for memory is " + mem
	case !gone.IsEmpty():
		return fmt.Sprintf("CPUs %s are not online any more", gone)
	}
	if kept := cpus.Intersection(m.cfg.Reserved); !kept.IsEmpty() {
		return fmt.Sprintf("CPUs %s are reserved for the node", kept)
	}
	if _, err := m.newLedger(append(slices.Clip(m.pods), a)); err != nil {
		return strings.TrimSpace(err.Error())
	}
	return ""
}
