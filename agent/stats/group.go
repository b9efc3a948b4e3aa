package stats

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// group is one that is measured again and again.
type group struct {
	sampler *cgroups.Sampler // nil: too many are open, so it is opened each time
	figures Figures
	moved   bool
}

func (g *group) close(c *Collector) {
	if g.sampler != nil {
		g.sampler.Close()
		g.sampler = nil
		c.open--
	}
}

// figures measures a group. The rate of one that was not measured before is that since it began, if it is known when. Without
// awake the group above did not move, so that nothing in this one did.
func (c *Collector) figures(path string, began time.Time, seen map[string]bool, awake bool) Figures {
	seen[path] = true
	g := c.groups[path]
	if g == nil {
		g = &group{figures: Figures{Path: path, Usage: cgroups.Usage{Time: began}}, moved: true}
		c.groups[path] = g
	}
	if !awake && g.figures.Known {
		g.moved = false
		g.figures.Usage.Time, g.figures.Rate = time.Now(), 0
		return g.figures
	}
	before := g.figures.Usage
	now, err := c.sample(g, path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			c.log.Warn("group cannot be measured", "cgroup", path, "error", err)
		}
		g.close(c)
		delete(c.groups, path) // it is gone, or will be made anew
		return Figures{Path: path}
	}
	g.figures.Usage, g.figures.Known = now, true
	// Right after somebody else has asked there is nothing to tell a rate by: that of before still holds.
	if dt := now.Time.Sub(before.Time); !before.Time.IsZero() && dt >= prime/2 && now.CPU.UsageNs >= before.CPU.UsageNs {
		g.figures.Rate = uint64(float64(now.CPU.UsageNs-before.CPU.UsageNs) / dt.Seconds())
	}
	return g.figures
}

func (c *Collector) sample(g *group, path string) (cgroups.Usage, error) {
	if g.sampler == nil && c.open >= c.most {
		g.moved = true
		return c.cfg.Groups.Stat(path)
	}
	var u cgroups.Usage
	if g.sampler == nil {
		s, err := c.cfg.Groups.OpenSampler(path)
		if err != nil {
			return u, err
		}
		if c.aggregate(path) {
			s.Alone()
		}
		if above := c.groups[filepath.Dir(path)]; above != nil && above.sampler != nil {
			s.Below(above.sampler)
		}
		g.sampler = s
		c.open++
	}
	err := g.sampler.SampleIn(&u, c.round)
	g.moved = g.sampler.Moved()
	return u, err
}

// aggregate says whether a group is one of many pods. Their OOM kills are not summed up: on v1 that would be reading every group
// below.
func (c *Collector) aggregate(path string) bool {
	return path == "/" || slices.Contains(c.cfg.Classes, path)
}

// processes counts those of one group. Only groups without others below them have any to speak of.
func (c *Collector) processes(path string) uint64 {
	pids := c.pids(path)
	if len(pids) == 0 {
		return 0
	}
	return uint64(bytes.Count(pids, []byte("\n"))) + 1
}

func (c *Collector) pids(path string) []byte {
	data, err := os.ReadFile(c.cfg.Groups.MemoryDir(path) + "/cgroup.procs")
	if err != nil {
		return nil
	}
	return bytes.TrimSpace(data)
}

// pod measures a pod with its containers that run. A pod of which none does, since they wait to be restarted or end one after the
// other, has its group still, and in it what they used and how many were killed; one without either has nothing to tell.
func (c *Collector) pod(pod *corev1.Pod, seen map[string]bool) (Pod, bool) {
	running := runningContainers(pod)
	path := c.cfg.PodPath(pod)
	if len(running) == 0 && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !c.cfg.Groups.Exists(path)) {
		return Pod{}, false
	}
	st := c.pods[pod.UID]
	if st == nil {
		st = &podState{paths: map[string]string{}}
		c.pods[pod.UID] = st
	}
	out := Pod{Pod: pod, state: st}
	var began time.Time
	if pod.Status.StartTime != nil {
		began = pod.Status.StartTime.Time
	}
	out.Figures = c.figures(path, began, seen, true)
	g := c.groups[path]
	awake := g == nil || g.moved
	for _, r := range running {
		r.Figures = Figures{}
		if p := c.containerPath(st, path, r.ID); p != "" {
			r.Figures = c.container(p, r.Started, seen, awake)
			if !r.Known {
				delete(st.paths, r.ID)
			}
		}
		out.Containers = append(out.Containers, r)
	}
	if c.round.Brief {
		return out, true
	}
	out.Processes = 0
	for _, r := range out.Containers {
		out.Processes += r.Processes
	}
	if !pod.Spec.HostNetwork {
		out.Network, out.NetworkAt = st.net.read(awake, func() int { return c.anyPid(out.Containers) })
	}
	return out, true
}

func (c *Collector) container(path string, began time.Time, seen map[string]bool, awake bool) Figures {
	f := c.figures(path, began, seen, awake)
	if g := c.groups[path]; g != nil && !c.round.Brief && (g.moved || g.figures.Processes == 0) {
		g.figures.Processes = c.processes(path)
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
func (c *Collector) containerPath(st *podState, pod, id string) string {
	if p, ok := st.paths[id]; ok {
		return p
	}
	entries, err := os.ReadDir(c.cfg.Groups.MemoryDir(pod))
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
func (c *Collector) anyPid(list []Container) int {
	for _, r := range list {
		if !r.Known {
			continue
		}
		line, _, _ := bytes.Cut(c.pids(r.Path), []byte("\n"))
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
				Name: s.Name, ID: id, Image: s.Image, Started: s.State.Running.StartedAt.Time, Spec: specOf(pod, s.Name),
			})
		}
	}
	return out
}

func specOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
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
