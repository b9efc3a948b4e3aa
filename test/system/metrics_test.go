package system

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
)

// monitored is a pod with all that monitoring asks about: limits, a probe, volumes, one of them claimed, and files that
// are written.
const monitored = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: default, name: data}
  local: {path: DIR}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  volumeName: disk
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: seen}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: ` + image + `
    # On cgroup v1 what a flusher thread of the kernel writes, as for sync(2), is nobody's; what fsync(2) writes is the caller's.
    command: [sh, -c, 'dd if=/dev/zero of=/data/file bs=1M count=1 conv=fsync 2>/dev/null; while :; do :; done']
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
`

// TestMetricNames holds the pages against what metrics-server and the usual dashboards and alerts (those of
// kubernetes-mixin, which kube-prometheus installs) query of a kubelet: the metric is there, of its kind, with the
// labels that are selected and grouped by.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	disk := n.countedDisk()
	n.apply("seen.yaml", strings.ReplaceAll(monitored, "DIR", disk))
	n.waitReady("seen")
	const (
		counter   = dto.MetricType_COUNTER
		gauge     = dto.MetricType_GAUGE
		histogram = dto.MetricType_HISTOGRAM
	)
	ofContainer := "container,id,image,name,namespace,pod"
	for _, page := range []struct {
		path    string
		metrics map[string]string // name to labels
		kinds   map[string]dto.MetricType
	}{
		// metrics-server, k8s.io/metrics' adapters.
		{"/metrics/resource", map[string]string{
			"node_cpu_usage_seconds_total": "", "node_memory_working_set_bytes": "", "node_swap_usage_bytes": "", "resource_scrape_error": "",
			"container_cpu_usage_seconds_total": "container,namespace,pod", "container_memory_working_set_bytes": "container,namespace,pod",
			"container_start_time_seconds": "container,namespace,pod", "container_swap_usage_bytes": "container,namespace,pod",
			"pod_cpu_usage_seconds_total": "namespace,pod", "pod_memory_working_set_bytes": "namespace,pod", "pod_swap_usage_bytes": "namespace,pod",
		}, map[string]dto.MetricType{}},
		{"/metrics/cadvisor", map[string]string{
			"container_cpu_usage_seconds_total": ofContainer +
				",cpu", "container_cpu_user_seconds_total": ofContainer, "container_cpu_system_seconds_total": ofContainer,
			"container_cpu_cfs_periods_total": ofContainer, "container_cpu_cfs_throttled_periods_total": ofContainer, "container_cpu_cfs_throttled_seconds_total": ofContainer,
			"container_memory_usage_bytes": ofContainer, "container_memory_working_set_bytes": ofContainer, "container_memory_rss": ofContainer,
			"container_memory_cache": ofContainer, "container_memory_swap": ofContainer, "container_memory_mapped_file": ofContainer,
			"container_memory_max_usage_bytes": ofContainer, "container_memory_failcnt": ofContainer, "container_memory_failures_total": ofContainer + ",failure_type,scope",
			"container_network_receive_bytes_total": ofContainer +
				",interface", "container_network_transmit_bytes_total": ofContainer + ",interface",
			"container_network_receive_packets_total": ofContainer +
				",interface", "container_network_transmit_packets_total": ofContainer + ",interface",
			"container_network_receive_packets_dropped_total": ofContainer +
				",interface", "container_network_transmit_packets_dropped_total": ofContainer + ",interface",
			"container_network_receive_errors_total": ofContainer +
				",interface", "container_network_transmit_errors_total": ofContainer + ",interface",
			"container_fs_reads_total": ofContainer + ",device", "container_fs_writes_total": ofContainer + ",device",
			"container_fs_reads_bytes_total": ofContainer + ",device", "container_fs_writes_bytes_total": ofContainer +
				",device",
			"container_fs_usage_bytes": ofContainer + ",device", "container_fs_limit_bytes": ofContainer + ",device",
			"container_blkio_device_usage_total": ofContainer + ",device,major,minor,operation",
			"container_oom_events_total":         ofContainer, "container_processes": ofContainer, "container_threads": ofContainer,
			"container_last_seen": ofContainer, "container_start_time_seconds": ofContainer, "container_spec_cpu_period": ofContainer,
			"container_spec_cpu_quota": ofContainer, "container_spec_cpu_shares": ofContainer, "container_spec_memory_limit_bytes": ofContainer,
			"container_spec_memory_swap_limit_bytes": ofContainer, "container_scrape_error": "",
			"machine_cpu_cores": "boot_id,machine_id,system_uuid", "machine_cpu_physical_cores": "boot_id,machine_id,system_uuid",
			"machine_cpu_sockets": "boot_id,machine_id,system_uuid", "machine_memory_bytes": "boot_id,machine_id,system_uuid",
			"machine_swap_bytes": "boot_id,machine_id,system_uuid", "machine_scrape_error": "",
			"cadvisor_version_info": "cadvisorRevision,cadvisorVersion,dockerVersion,kernelVersion,osVersion",
		}, map[string]dto.MetricType{"container_memory_failcnt": counter}},
		{"/metrics/probes", map[string]string{
			"prober_probe_total":            "container,namespace,pod,pod_uid,probe_type,result",
			"prober_probe_duration_seconds": "container,namespace,pod,probe_type",
		}, map[string]dto.MetricType{"prober_probe_duration_seconds": histogram}},
		{"/metrics", map[string]string{
			"kubelet_node_name": "node", "kubelet_running_pods": "", "kubelet_running_containers": "container_state",
			"volume_manager_total_volumes":     "plugin_name,state",
			"kubelet_runtime_operations_total": "operation_type", "kubelet_runtime_operations_errors_total": "operation_type",
			"kubelet_runtime_operations_duration_seconds": "operation_type", "kubelet_pod_start_duration_seconds": "",
			"kubelet_pod_worker_duration_seconds": "operation_type", "kubelet_cgroup_manager_duration_seconds": "operation_type",
			"kubelet_pleg_relist_duration_seconds": "", "kubelet_pleg_relist_interval_seconds": "",
			"kubelet_volume_stats_capacity_bytes": "namespace,persistentvolumeclaim", "kubelet_volume_stats_available_bytes": "namespace,persistentvolumeclaim",
			"kubelet_volume_stats_used_bytes": "namespace,persistentvolumeclaim", "kubelet_volume_stats_inodes": "namespace,persistentvolumeclaim",
			"kubelet_volume_stats_inodes_free": "namespace,persistentvolumeclaim", "kubelet_volume_stats_inodes_used": "namespace,persistentvolumeclaim",
			"kubernetes_build_info":     "build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform",
			"process_cpu_seconds_total": "", "process_resident_memory_bytes": "", "process_start_time_seconds": "", "go_goroutines": "",
		}, map[string]dto.MetricType{
			"kubelet_runtime_operations_duration_seconds": histogram, "kubelet_pod_start_duration_seconds": histogram,
			"kubelet_pod_worker_duration_seconds": histogram, "kubelet_cgroup_manager_duration_seconds": histogram,
			"kubelet_pleg_relist_duration_seconds": histogram, "kubelet_pleg_relist_interval_seconds": histogram,
			"volume_manager_total_volumes": gauge,
		}},
	} {
		kindOf := func(name string) dto.MetricType {
			if k, ok := page.kinds[name]; ok {
				return k
			}
			if strings.HasSuffix(name, "_total") {
				return counter
			}
			return gauge
		}
		n.eventually("the metrics of "+page.path, func() error {
			families := n.families(page.path)
			for _, name := range slices.Sorted(maps.Keys(page.metrics)) {
				f := families[name]
				if f == nil {
					return fmt.Errorf("no %s", name)
				}
				if f.GetType() != kindOf(name) {
					return fmt.Errorf("%s is a %v, not a %v", name, f.GetType(), kindOf(name))
				}
				if f.GetHelp() == "" {
					return fmt.Errorf("%s has no help", name)
				}
				for _, m := range f.GetMetric() {
					var labels []string
					for _, l := range m.GetLabel() {
						labels = append(labels, l.GetName())
					}
					slices.Sort(labels)
					want := strings.Split(page.metrics[name], ",")
					slices.Sort(want)
					if got := strings.Join(labels, ","); got != strings.Join(want, ",") {
						return fmt.Errorf("%s has the labels %q, not %q", name, got, page.metrics[name])
					}
				}
			}
			return nil
		})
	}
	// What dashboards select a container by.
	cad := n.metrics("/metrics/cadvisor")
	for _, s := range cad["container_cpu_usage_seconds_total"] {
		if l := s.labels; l["pod"] != "" && l["container"] != "" &&
			(l["image"] == "" || l["name"] == "" || l["namespace"] == "" || l["id"] == "" || l["cpu"] != "total") {
			t.Errorf("a container without labels: %v", l)
		}
	}
	n.remove("seen.yaml")
	n.waitGone("seen")
	n.eventually("its metrics to go", func() error {
		for _, path := range []string{"/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics"} {
			for name, samples := range n.metrics(path) {
				for _, s := range samples {
					if strings.HasPrefix(s.labels["pod"], "seen") {
						return fmt.Errorf("%s still has %s of %v", path, name, s.labels)
					}
				}
			}
		}
		return nil
	})
	n.requireNoPods()
}

// countedDisk mounts a file system on a device of the test's own whose I/O the kernel counts for each cgroup. On v1 it
// does so from the first throttle that the device is given (Linux 6.10), so it is given one, which allows everything.
func (n *Node) countedDisk() string {
	n.t.Helper()
	image, dir := filepath.Join(n.Dir, "counted.img"), filepath.Join(n.Dir, "counted")
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	write(n.t, image, "")
	if err := os.Truncate(image, 64<<20); err != nil {
		n.t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(n.t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			n.t.Skipf("needs a disk of its own: %s: %v: %s", args[0], err, out)
		}
	}
	n.disks = append(n.disks, dir)
	if unified() {
		return dir
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		n.t.Fatal(err)
	}
	group, err := os.MkdirTemp("/sys/fs/cgroup/blkio", "berth-counted-")
	if err != nil {
		n.t.Fatal(err)
	}
	defer os.Remove(group)
	throttle := fmt.Sprintf("%d:%d 0", unix.Major(st.Dev), unix.Minor(st.Dev)) // no limit
	if err := os.WriteFile(filepath.Join(group, "blkio.throttle.read_bps_device"), []byte(throttle), 0); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// families are the metrics of a page.
func (n *Node) families(path string) map[string]*dto.MetricFamily {
	n.t.Helper()
	resp, err := n.client.Get("http://node" + path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		n.t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return families
}
