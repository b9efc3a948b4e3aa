package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
)

// load is a pod that burns what CPU it may have, holds memory, has files in a volume and in its layer, and serves them;
// and one that is killed for its memory again and again.
const load = `
apiVersion: v1
kind: Pod
metadata: {name: load}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: busy
    image: ` + image + `
    command: [sh, -c, 'httpd -p 8080 -h /vol; dd if=/dev/zero of=/vol/file bs=1M count=3 2>/dev/null; dd if=/dev/zero of=/layer bs=1M count=2 2>/dev/null; dd if=/dev/zero of=/tmpfs/held bs=1M count=20 2>/dev/null; while :; do :; done']
    resources: {limits: {cpu: 100m, memory: 64Mi}}
    volumeMounts: [{name: vol, mountPath: /vol}, {name: held, mountPath: /tmpfs}]
  - name: quiet
    image: ` + image + `
    command: [sleep, "100000"]
  volumes:
  - {name: vol, emptyDir: {}}
  - {name: held, emptyDir: {medium: Memory}}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: eats
    image: ` + image + `
    command: [sh, -c, 'while :; do tail /dev/zero; sleep 0.1; done']
    resources: {limits: {memory: 16Mi}}
`

// TestStats checks what is told of pods against the kernel's own files.
func TestStats(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("load.yaml", load)
	p := n.waitReady("load")
	greedy := n.waitReady("greedy")
	fetch := func() error {
		resp, err := http.Get("http://" + p.Status.PodIP + ":8080/file")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if got, err := io.Copy(io.Discard, resp.Body); err != nil || got != 3<<20 {
			return fmt.Errorf("fetched %d bytes: %w", got, err)
		}
		return nil
	}
	n.eventually("the files to be served", fetch)
	n.eventually("the memory to be held", func() error {
		if fi, err := os.Stat("/proc/" + n.processesIn(n.groupOf(p, p.Status.ContainerStatuses[0]))[0] +
			"/root/tmpfs/held"); err != nil || fi.Size() != 20<<20 {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
	busy := p.Status.ContainerStatuses[0]
	group := n.groupOf(p, busy)
	pid := n.processesIn(group)[0]
	for range 5 {
		if err := fetch(); err != nil {
			t.Fatal(err)
		}
	}

	cpu := func() float64 { return cpuSeconds(t, group) }
	sent := func() float64 { return txBytes(t, pid) }
	c0, s0 := cpu(), sent()
	podBefore, before := pressureTotals(n.podGroup(p)), pressureTotals(group)
	var sum statsapi.Summary
	n.getJSON("/stats/summary", &sum)
	if n.peer != nil { // other runtimes measure layers once in a while, and tell what they measured last
		n.eventually("the runtime to measure the layer", func() error {
			c0, s0, sum = cpu(), sent(), statsapi.Summary{}
			n.getJSON("/stats/summary", &sum)
			one := containerStats(t, podStats(t, &sum, p), "busy")
			if one.Rootfs == nil || one.CPU == nil {
				return errors.New("there is nothing of it yet")
			}
			if used, cpu := one.Rootfs.UsedBytes, one.CPU.UsageCoreNanoSeconds; used == nil || *used < 2<<20 || cpu == nil ||
				float64(*cpu) < c0*1e9 {
				return errors.New("it is not measured yet")
			}
			return nil
		})
	}
	c1, s1 := cpu(), sent()
	podAfter, after := pressureTotals(n.podGroup(p)), pressureTotals(group)
	ps := podStats(t, &sum, p)
	one := containerStats(t, ps, "busy")
	within := func(what string, got *uint64, least, most float64) {
		t.Helper()
		if got == nil {
			t.Errorf("%s is not told", what)
			// seconds do not hold each nanosecond
		} else if float64(*got) < math.Round(least) || float64(*got) > math.Round(most) {
			t.Errorf("%s is %d, the kernel says %.0f to %.0f", what, *got, least, most)
		}
	}
	within("CPU time", one.CPU.UsageCoreNanoSeconds, c0*1e9, c1*1e9)
	within("pod's CPU time", ps.CPU.UsageCoreNanoSeconds, c0*1e9, math.Inf(1))
	// It is limited to 100e6. A window is no multiple of periods, and on a busy machine there may be one in which it
	// does not run.
	n.eventually("the use of the CPU to be told", func() error {
		var s statsapi.Summary
		n.getJSON("/stats/summary", &s)
		if now := containerStats(t, podStats(t, &s, p), "busy").CPU.UsageNanoCores; now == nil || *now < 20e6 ||
			*now > 300e6 {
			return errors.New("it is not near the limit")
		}
		return nil
	})
	within("working set", one.Memory.WorkingSetBytes, 20<<20, 64<<20)
	within("available", one.Memory.AvailableBytes, 1, 44<<20)
	if m := one.Memory; m.AvailableBytes != nil && m.WorkingSetBytes != nil &&
		*m.AvailableBytes+*m.WorkingSetBytes != 64<<20 {
		t.Errorf("available %d and working set %d are not the limit together", *m.AvailableBytes, *m.WorkingSetBytes)
	}
	within("sent", ps.Network.TxBytes, s0, s1)
	within("sent", ps.Network.TxBytes, 15<<20, math.Inf(1))
	within("processes", ps.ProcessStats.ProcessCount, 3, 20)
	within("writable layer", one.Rootfs.UsedBytes, 2<<20, 3<<20)
	within("node's CPU time", sum.Node.CPU.UsageCoreNanoSeconds, float64(*ps.CPU.UsageCoreNanoSeconds), math.Inf(1))
	within("node's file system", sum.Node.Fs.CapacityBytes, 1, math.Inf(1))
	within("images", sum.Node.Runtime.ImageFs.UsedBytes, 1, math.Inf(1))
	within("ephemeral storage", ps.EphemeralStorage.UsedBytes, 5<<20, 8<<20)
	for _, v := range ps.VolumeStats {
		switch v.Name {
		case "vol":
			within("volume", v.UsedBytes, 3<<20, 4<<20)
		case "held":
			within("volume in memory", v.UsedBytes, 20<<20, 21<<20)
		}
	}
	if len(ps.VolumeStats) != 2 {
		t.Errorf("volumes: %+v", ps.VolumeStats)
	}

	requirePressure(t, "pod", ps.CPU, ps.Memory, ps.IO, podBefore, podAfter)
	requirePressure(t, "container", one.CPU, one.Memory, one.IO, before, after)

	var only statsapi.Summary
	n.getJSON("/stats/summary?only_cpu_and_memory=true", &only)
	if o := podStats(t, &only, p); o.Network != nil || o.VolumeStats != nil || o.CPU == nil || o.Memory == nil {
		t.Errorf("only CPU and memory: %+v", o)
	}

	labels := map[string]string{"container": "busy", "pod": p.Name, "namespace": "default"}
	res, cad, own := n.metrics("/metrics/resource"), n.metrics("/metrics/cadvisor"), n.metrics("/metrics")
	if got := res.get(t, "container_cpu_usage_seconds_total", labels); got < c0 || got > cpu() {
		t.Errorf("container_cpu_usage_seconds_total %f of resource is not between %f and now", got, c0)
	}
	if got := res.get(t, "resource_scrape_error", nil); got != 0 {
		t.Errorf("resource_scrape_error %f", got)
	}
	for name, least := range map[string]float64{
		"container_cpu_usage_seconds_total": c0, "container_memory_working_set_bytes": 20 << 20,
		"container_spec_memory_limit_bytes": 64 << 20, "container_spec_cpu_quota": 10000, "container_spec_cpu_period": 100000, "container_processes": 2, "container_start_time_seconds": 1,
	} {
		if got := cad.get(t, name, labels); got < least {
			t.Errorf("%s is %f, less than %f", name, got, least)
		}
	}
	// It is throttled in a period in which it would have more than its quota: not before it gets that much of a
	// processor.
	n.eventually("the busy one to be throttled", func() error {
		if got := n.metrics("/metrics/cadvisor").get(t, "container_cpu_cfs_throttled_periods_total", labels); got < 1 {
			return fmt.Errorf("it was in %v periods", got)
		}
		return nil
	})
	if got := cad.get(t, "container_network_transmit_bytes_total",
		map[string]string{"pod": p.Name, "interface": "eth0"}); got < 15<<20 {
		t.Errorf("container_network_transmit_bytes_total is %f", got)
	}
	for _, name := range []string{"kubelet_running_pods", "berth_node_memory_available_bytes"} {
		if got := own.get(t, name, nil); got < 2 {
			t.Errorf("%s is %f", name, got)
		}
	}
	// On v2 all of a container dies with the process that is killed, and its count with its group: the pod's has both.
	who := map[string]string{"container": "", "pod": greedy.Name}
	if !unified() {
		who["container"] = "eats"
	}
	n.eventually("the OOM kills to be told", func() error {
		if got, ok := n.metrics("/metrics/cadvisor").find("container_oom_events_total", who); !ok || got < 1 {
			return fmt.Errorf("%f kills of %v, %t", got, who, ok)
		}
		return nil
	})
}

// pressureTotals are the kernel's totals of waiting in a group in microseconds, by resource; none where groups have no
// pressure.
func pressureTotals(group string) map[string]uint64 {
	out := map[string]uint64{}
	for _, what := range []string{"cpu", "memory", "io"} {
		text := groupFile("unified", group, what+".pressure", what+".pressure")
		some, _, _ := strings.Cut(text, "\n")
		_, total, ok := strings.Cut(some, "total=")
		if n, err := strconv.ParseUint(total, 10, 64); ok && err == nil {
			out[what] = n
		}
	}
	return out
}

// requirePressure holds what is told against what the kernel said before and after.
func requirePressure(t *testing.T, whose string, cpu *statsapi.CPUStats, memory *statsapi.MemoryStats,
	io *statsapi.IOStats, before, after map[string]uint64,
) {
	t.Helper()
	if len(before) == 0 {
		if unified() {
			t.Errorf("the kernel keeps no pressure for the %s", whose)
		}
		return
	}
	if cpu == nil || memory == nil || io == nil || cpu.PSI == nil || memory.PSI == nil || io.PSI == nil {
		t.Fatalf("%s: pressure is not told: %+v %+v %+v", whose, cpu, memory, io)
	}
	for what, psi := range map[string]*statsapi.PSIStats{"cpu": cpu.PSI, "memory": memory.PSI, "io": io.PSI} {
		if got := psi.Some.Total / 1000; got < before[what] || got > after[what] {
			t.Errorf("%s: tasks waited for %s %d µs, the kernel says %d to %d", whose, what, got, before[what], after[what])
		}
	}
	if cpu.PSI.Some.Total == 0 {
		t.Errorf("%s: a container that is throttled never waited for CPU", whose)
	}
}

// unified says whether this machine has cgroup v2 alone.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// groupOf is the cgroup of a pod's container.
func (n *Node) groupOf(p *corev1.Pod, c corev1.ContainerStatus) string {
	n.t.Helper()
	_, id, _ := strings.Cut(c.ContainerID, "://")
	if n.peer != nil {
		id = n.peer.GroupPrefix + id
	}
	if n.driver == cgroups.DriverSystemd {
		id = "cri-berth-" + id + ".scope"
	}
	return n.podGroup(p) + "/" + id
}

func (n *Node) podGroup(p *corev1.Pod) string {
	n.t.Helper()
	names := []string{"kubepods"}
	if class := p.Status.QOSClass; class != corev1.PodQOSGuaranteed {
		names = append(names, strings.ToLower(string(class)))
	}
	names = append(names, "pod"+string(p.UID))
	if n.driver == cgroups.DriverSystemd {
		return systemd.SlicePath(n.CgroupRoot, names...)
	}
	return path.Join(append([]string{n.CgroupRoot}, names...)...)
}

// groupFile reads a file of a group: of v1's controller, or of v2's.
func groupFile(controller, group, v1, v2 string) string {
	for _, path := range []string{"/sys/fs/cgroup/" + controller + group + "/" + v1, "/sys/fs/cgroup" + group + "/" + v2} {
		if b, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

func cpuSeconds(t *testing.T, group string) float64 {
	t.Helper()
	text := groupFile("cpuacct", group, "cpuacct.usage", "cpu.stat")
	scale := 1e9
	if rest, ok := strings.CutPrefix(text, "usage_usec "); ok {
		text, _, _ = strings.Cut(rest, "\n")
		scale = 1e6
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v / scale
}

func txBytes(t *testing.T, pid string) float64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", pid, "net/dev"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "eth0:")
	v, err := strconv.ParseFloat(strings.Fields(rest)[8], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (n *Node) getJSON(path string, v any) {
	n.t.Helper()
	resp, err := n.client.Get("http://node" + path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil || resp.StatusCode != http.StatusOK {
		n.t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
}

func podStats(t *testing.T, s *statsapi.Summary, p *corev1.Pod) *statsapi.PodStats {
	t.Helper()
	for i := range s.Pods {
		if s.Pods[i].PodRef.UID == string(p.UID) {
			return &s.Pods[i]
		}
	}
	t.Fatalf("no pod %s in %+v", p.Name, s.Pods)
	return nil
}

func containerStats(t *testing.T, p *statsapi.PodStats, name string) *statsapi.ContainerStats {
	t.Helper()
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	t.Fatalf("no container %s in %+v", name, p.Containers)
	return nil
}

// page is one of metrics.
type page map[string][]sample

type sample struct {
	labels map[string]string
	value  float64
}

func (n *Node) metrics(path string) page {
	n.t.Helper()
	families := n.families(path)
	out := page{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			s := sample{map[string]string{}, m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			out[name] = append(out[name], s)
		}
	}
	return out
}

// get is the value of the metric with those labels.
func (p page) get(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	v, ok := p.find(name, labels)
	if !ok {
		t.Errorf("no %s with %v among %d", name, labels, len(p[name]))
	}
	return v
}

func (p page) find(name string, labels map[string]string) (float64, bool) {
next:
	for _, s := range p[name] {
		for k, v := range labels {
			if s.labels[k] != v {
				continue next
			}
		}
		return s.value, true
	}
	return math.NaN(), false
}
