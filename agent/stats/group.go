package stats

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// meter measures groups and pods, and keeps their files open between two measurements. One measurement is made at a
// time.
type meter struct {
	cfg *Config
	log *slog.Logger

	pods   map[types.UID]*podState
	groups map[string]*group
	round  cgroups.Round
	open   int // groups whose files are open
	most   int // how many may be
}

func newMeter(c *Config) *meter {
	return &meter{cfg: c, log: c.Log, pods: map[types.UID]*podState{}, groups: map[string]*group{}, most: mostGroups()}
}

// mostGroups leaves half of the descriptors that this process may have to everything else.
func mostGroups() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 20
	}
	return int(min(r.Cur, 1<<20)) / 2 / filesPerGroup
}

// measure measures everything; brief it is CPU time and memory alone.
func (m *meter) measure(brief bool) *Snapshot {
	began := time.Now()
	s := &Snapshot{Time: began, brief: brief}
	seen := map[string]bool{}
	kills, err := cgroups.MachineOOMKills()
	m.round = cgroups.Round{OOMKills: kills, Known: err == nil, Brief: brief}
	s.Node = m.node(seen)
	for _, path := range m.cfg.Classes {
		s.Classes = append(s.Classes, m.figures(path, time.Time{}, seen, true))
	}
	live := map[types.UID]bool{}
	for _, pod := range m.cfg.Pods() {
		if p, ok := m.pod(pod, seen); ok {
			live[pod.UID] = true
			s.Pods = append(s.Pods, p)
		}
	}
	m.keep(seen, live)
	return s
}

// keep closes the files of all others.
func (m *meter) keep(groups map[string]bool, pods map[types.UID]bool) {
	for path, g := range m.groups {
		if !groups[path] {
			m.shut(g)
			delete(m.groups, path)
		}
	}
	for uid, p := range m.pods {
		if !pods[uid] {
			p.net.close()
			delete(m.pods, uid)
		}
	}
}

// group is one that is measured again and again.
type group struct {
	sampler *cgroups.Sampler // nil: too many are open, so it is opened each time
	figures Figures
	moved   bool
}

// shut closes the files of a group.
func (m *meter) shut(g *group) {
	if g.sampler != nil {
		g.sampler.Close()
		g.sampler = nil
		m.open--
	}
}

// figures measures a group. The rate of one that was not measured before is that since it began, if it is known when.
// Without awake the group above did not move, so that nothing in this one did.
func (m *meter) figures(path string, began time.Time, seen map[string]bool, awake bool) Figures {
	seen[path] = true
	g := m.groups[path]
	if g == nil {
		g = &group{figures: Figures{Path: path, Usage: cgroups.Usage{Time: began}}, moved: true}
		m.groups[path] = g
	}
	if !awake && g.figures.Known {
		g.moved = false
		g.figures.Usage.Time, g.figures.Rate = time.Now(), 0
		return g.figures
	}
	before := g.figures.Usage
	now, err := m.sample(g, path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			m.log.Warn("group cannot be measured", "cgroup", path, "error", err)
		}
		m.shut(g)
		delete(m.groups, path) // it is gone, or will be made again
		return Figures{Path: path}
	}
	g.figures.Usage, g.figures.Known = now, true
	// Right after somebody else has asked there is nothing to tell a rate by: that of before still holds.
	if dt := now.Time.Sub(before.Time); !before.Time.IsZero() && dt >= prime/2 && now.CPU.UsageNs >= before.CPU.UsageNs {
		g.figures.Rate = uint64(float64(now.CPU.UsageNs-before.CPU.UsageNs) / dt.Seconds())
	}
	return g.figures
}

func (m *meter) sample(g *group, path string) (cgroups.Usage, error) {
	if g.sampler == nil && m.open >= m.most {
		g.moved = true
		return m.cfg.Groups.Stat(path)
	}
	var u cgroups.Usage
	if g.sampler == nil {
		s, err := m.cfg.Groups.OpenSampler(path)
		if err != nil {
			return u, err
		}
		if m.aggregate(path) {
			s.Alone()
		}
		if above := m.groups[filepath.Dir(path)]; above != nil && above.sampler != nil {
			s.Below(above.sampler)
		}
		g.sampler = s
		m.open++
	}
	err := g.sampler.SampleIn(&u, m.round)
	g.moved = g.sampler.Moved()
	return u, err
}

// aggregate says whether a group is one of many pods. Their OOM kills are not summed up: on v1 that would be reading
// every group below.
func (m *meter) aggregate(path string) bool {
	return path == "/" || slices.Contains(m.cfg.Classes, path)
}

// processes counts those of one group. Only groups without others below them have any to speak of.
func processes(h *cgroups.Hierarchy, path string) uint64 {
	list := pids(h, path)
	if len(list) == 0 {
		return 0
	}
	return uint64(bytes.Count(list, []byte("\n"))) + 1
}

func pids(h *cgroups.Hierarchy, path string) []byte {
	data, err := os.ReadFile(h.MemoryDir(path) + "/cgroup.procs")
	if err != nil {
		return nil
	}
	return bytes.TrimSpace(data)
}

// pod measures a pod with its containers that run. A pod of which none does, since they wait to be restarted or end one
// after the other, has its group still, and in it what they used and how many were killed; one without either has
// nothing to tell.
func (m *meter) pod(pod *corev1.Pod, seen map[string]bool) (Pod, bool) {
	running := runningContainers(pod)
	path := m.cfg.PodPath(pod)
	if len(running) == 0 &&
		(pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !m.cfg.Groups.Exists(path)) {
		return Pod{}, false
	}
	st := m.pods[pod.UID]
	if st == nil {
		st = &podState{paths: map[string]string{}}
		m.pods[pod.UID] = st
	}
	out := Pod{Pod: pod, state: st}
	var began time.Time
	if pod.Status.StartTime != nil {
		began = pod.Status.StartTime.Time
	}
	out.Figures = m.figures(path, began, seen, true)
	g := m.groups[path]
	awake := g == nil || g.moved
	for _, r := range running {
		r.Figures = Figures{}
		if p := m.containerPath(st, path, r.ID); p != "" {
			r.Figures = m.container(p, r.Started, seen, awake)
			if !r.Known {
				delete(st.paths, r.ID)
			}
		}
		out.Containers = append(out.Containers, r)
	}
	if m.round.Brief {
		return out, true
	}
	out.Processes = 0
	for _, r := range out.Containers {
		out.Processes += r.Processes
	}
	if !pod.Spec.HostNetwork {
		out.Network, out.NetworkAt = st.net.read(awake, func() int { return anyPid(m.cfg.Groups, out.Containers) })
	}
	return out, true
}

func (m *meter) container(path string, began time.Time, seen map[string]bool, awake bool) Figures {
	f := m.figures(path, began, seen, awake)
	if g := m.groups[path]; g != nil && !m.round.Brief && (g.moved || g.figures.Processes == 0) {
		g.figures.Processes = processes(m.cfg.Groups, path)
		f.Processes = g.figures.Processes
	}
	return f
}

// podState is what is remembered of a pod between measurements.
type podState struct {
	paths map[string]string // container ID to group
	net   network
	disk  slow[disk]
}

// containerPath finds the container's group among those of the pod.
func (m *meter) containerPath(st *podState, pod, id string) string {
	if p, ok := st.paths[id]; ok {
		return p
	}
	entries, err := os.ReadDir(m.cfg.Groups.MemoryDir(pod))
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	name, ok := kube.ContainerGroup(names, id)
	if !ok {
		return ""
	}
	st.paths[id] = pod + "/" + name
	return st.paths[id]
}

// anyPid is a process of one of the containers; 0 when there is none.
func anyPid(h *cgroups.Hierarchy, list []Container) int {
	for _, r := range list {
		if !r.Known {
			continue
		}
		line, _, _ := bytes.Cut(pids(h, r.Path), []byte("\n"))
		if pid := atoi(line); pid > 0 {
			return pid
		}
	}
	return 0
}

// runningContainers are those of the pod's status, with the part of the specification that each was made from.
func runningContainers(pod *corev1.Pod) []Container {
	var out []Container
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			_, id, ok := strings.Cut(s.ContainerID, "://")
			if s.State.Running == nil || !ok || id == "" {
				continue
			}
			out = append(out, Container{
				Name: s.Name, ID: id, Image: s.Image, Started: s.State.Running.StartedAt.Time, Spec: spec.FindRegular(pod, s.Name),
			})
		}
	}
	return out
}

func atoi(b []byte) int {
	n := 0
	for _, d := range bytes.TrimSpace(b) {
		if d < '0' || d > '9' {
			return 0
		}
		n = 10*n + int(d-'0')
	}
	return n
}
