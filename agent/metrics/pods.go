// Package metrics has the agent's metrics of its pods, of probes and of its own work, by kubelet's names where kubelet
// has one.
package metrics

import (
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// Build is what monitoring of clusters compares the components' versions by: that of the Kubernetes API this was built
// with.
func Build() prometheus.Collector {
	labels := prometheus.Labels{
		"major": "", "minor": "", "git_version": "", "git_commit": "", "git_tree_state": "", "build_date": "",
		"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			// v0.37.2 of the module is v1.37.2 of Kubernetes.
			if parts := strings.SplitN(strings.TrimPrefix(m.Version, "v0."), ".", 2); m.Path == "k8s.io/api" && len(parts) == 2 {
				labels["major"], labels["minor"], labels["git_version"] = "1", parts[0], "v1."+parts[0]+"."+parts[1]
			}
		}
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info", ConstLabels: labels,
		Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
	})
	g.Set(1)
	return g
}

// podMetrics counts the pods and their containers.
type podMetrics struct{ list func() []*corev1.Pod }

// Pods counts the pods and their containers when it is asked.
func Pods(list func() []*corev1.Pod) prometheus.Collector { return &podMetrics{list} }

var (
	podsDesc     = prometheus.NewDesc("berth_pods", "Pods by phase.", []string{"phase"}, nil)
	runningDesc  = prometheus.NewDesc("berth_containers_running", "Containers that run.", nil, nil)
	restartsDesc = prometheus.NewDesc("berth_container_restarts_total", "Restarts of a container.", []string{"namespace", "pod", "container"}, nil)
	podsRunDesc  = prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running pod sandbox", nil, nil)
	statesDesc   = prometheus.NewDesc("kubelet_running_containers", "Number of containers currently running", []string{"container_state"}, nil)
	volumesDesc  = prometheus.NewDesc("volume_manager_total_volumes", "Number of volumes in Volume Manager", []string{"plugin_name", "state"}, nil)
	readyDesc    = prometheus.NewDesc("berth_pods_ready", "Pods that are ready.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *podMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- podsDesc
	ch <- runningDesc
	ch <- restartsDesc
	ch <- readyDesc
	ch <- podsRunDesc
	ch <- statesDesc
	ch <- volumesDesc
}

// Collect implements prometheus.Collector.
func (m *podMetrics) Collect(ch chan<- prometheus.Metric) {
	phases := map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodRunning: 0, corev1.PodSucceeded: 0, corev1.PodFailed: 0}
	running, ready, pods := 0, 0, 0
	volumes := map[[2]string]int{}
	states := map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}
	for _, p := range m.list() {
		if hasSandbox(p) {
			pods++
		}
		countVolumes(p, volumes)
		phases[p.Status.Phase]++
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, s := range list {
				switch {
				case s.State.Running != nil:
					running++
					states["running"]++
				case s.State.Terminated != nil:
					states["exited"]++
				case s.ContainerID != "" && s.LastTerminationState.Terminated == nil:
					states["created"]++
				}
				ch <- prometheus.MustNewConstMetric(restartsDesc, prometheus.CounterValue, float64(s.RestartCount), p.Namespace, p.Name, s.Name)
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(podsRunDesc, prometheus.GaugeValue, float64(pods))
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(statesDesc, prometheus.GaugeValue, float64(n), state)
	}
	for v, n := range volumes {
		ch <- prometheus.MustNewConstMetric(volumesDesc, prometheus.GaugeValue, float64(n), v[0], v[1])
	}
	for phase, n := range phases {
		ch <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(n), string(phase))
	}
	ch <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(running))
	ch <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, float64(ready))
}

// hasSandbox says whether the sandbox of a pod runs, which it does also while each of its containers waits to be
// started again.
func hasSandbox(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
}

// countVolumes counts the volumes of a pod by plugin, as they are to be and as they are.
func countVolumes(p *corev1.Pod, n map[[2]string]int) {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	made := hasSandbox(p)
	for i := range p.Spec.Volumes {
		plugin := pluginOf(&p.Spec.Volumes[i])
		n[[2]string{plugin, "desired_state_of_world"}]++
		if made {
			n[[2]string{plugin, "actual_state_of_world"}]++
		}
	}
}

// pluginOf is kubelet's name of what makes a volume. Of a claimed one only its volume would tell.
func pluginOf(v *corev1.Volume) string {
	for _, k := range []struct {
		is   bool
		name string
	}{
		{v.ConfigMap != nil, "configmap"},
		{v.Secret != nil, "secret"},
		{v.EmptyDir != nil, "empty-dir"},
		{v.HostPath != nil, "host-path"},
		{v.Projected != nil, "projected"},
		{v.DownwardAPI != nil, "downward-api"},
		{v.CSI != nil, "csi"},
		{v.Image != nil, "image"},
		{v.PersistentVolumeClaim != nil || v.Ephemeral != nil, "persistent-claim"},
	} {
		if k.is {
			return "kubernetes.io/" + k.name
		}
	}
	return "kubernetes.io/other"
}
