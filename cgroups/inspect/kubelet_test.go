package inspect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// The groups of a kubelet's node with the systemd driver: a static pod, whose uid is the hash of its manifest, and two
// others.
const (
	staticUID = "0123456789abcdef0123456789abcdef"
	pinnedUID = "aaa11111-1111-4111-8111-111111111111"
	busyUID   = "bbb22222-2222-4222-8222-222222222222"

	staticGroup = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice"
	pinnedGroup = "/kubepods.slice/kubepods-podaaa11111_1111_4111_8111_111111111111.slice"
	busyGroup   = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podbbb22222_2222_4222_8222_222222222222.slice"

	staticID = "1111111111111111"
	pinnedID = "2222222222222222"
	busyID   = "3333333333333333"
)

func kubeletNode() *Snapshot {
	group := func(cpus string) Group {
		return Group{Files: map[string]string{"cpuset.cpus.effective": cpus, "cpu.max": "max 100000", "cpuset.cpus": cpus}}
	}
	return &Snapshot{
		Machine: Machine{Mode: cgroups.Unified, Root: "/", Host: "Worker-1"},
		Names: map[string]Identity{
			staticUID: {Namespace: "kube-system", Name: "etcd-worker-1", Containers: map[string]string{staticID: "etcd"}},
			pinnedUID: {Namespace: "default", Name: "db-0", Containers: map[string]string{pinnedID: "postgres"}},
			busyUID:   {Namespace: "default", Name: "busy-x7f2q", Containers: map[string]string{busyID: "work"}},
		},
		Groups: map[string]Group{
			"/kubepods.slice": {}, "/kubepods.slice/kubepods-burstable.slice": {}, "/kubepods.slice/kubepods-besteffort.slice": {},
			staticGroup: {}, pinnedGroup: {}, busyGroup: {},
			staticGroup + "/cri-containerd-" + staticID + ".scope": group("0-1"),
			pinnedGroup + "/cri-containerd-" + pinnedID + ".scope": group("2-3"),
			busyGroup + "/crio-" + busyID + ".scope":               group("0-3"),
		},
	}
}

// `kubectl get pods -A` has the pods of all nodes, and a static pod's mirror under another uid.
func TestPodsOfTheCluster(t *testing.T) {
	s := kubeletNode()
	pod := func(node, name, uid, hash string) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: types.UID(uid)}, Spec: corev1.PodSpec{NodeName: node}}
		if hash != "" {
			p.Annotations = map[string]string{hashAnnotation: hash}
		}
		p.Status.Phase = corev1.PodRunning
		return p
	}
	s.use([]corev1.Pod{
		pod("ip-10-0-0-7", "etcd-worker-1", "fffff", staticUID), pod("ip-10-0-0-8", "etcd-worker-2", "eeeee", "feedbeef"),
		pod("ip-10-0-0-8", "web", "ddddd", ""), pod("ip-10-0-0-7", "db-0", pinnedUID, ""), pod("ip-10-0-0-7", "gone", "ccccc", ""), pod("", "waits", "ggggg", ""),
	}, "file")
	var got []string
	for _, p := range s.Pods {
		got = append(got, p.Name+" "+string(p.UID))
	}
	if want := "etcd-worker-1 " + staticUID + ", db-0 " + pinnedUID + ", gone ccccc, waits ggggg"; strings.Join(got, ", ") != want {
		t.Errorf("got %s", strings.Join(got, ", "))
	}
	var kinds []string
	for _, p := range (audit{s, kube.Options{}}).problems() {
		kinds = append(kinds, p.Kind+" "+p.Pod)
	}
	// The pod of the group that nobody told of is an orphan, and the running ones without a group are missing: of this
	// node's alone.
	for _, want := range []string{"orphan default/busy-x7f2q", "missing kube-system/gone"} {
		if !strings.Contains(strings.Join(kinds, "\n"), want) {
			t.Errorf("no %s in %q", want, kinds)
		}
	}
	if strings.Contains(strings.Join(kinds, "\n"), "web") {
		t.Errorf("told of another node's pod: %q", kinds)
	}
}

func TestStaticManifests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"etcd.yaml":  "apiVersion: v1\nkind: Pod\nmetadata: {name: etcd, namespace: kube-system}\nspec: {containers: [{name: etcd, resources: {requests: {cpu: 100m}}}]}\n",
		".etcd.swp":  "apiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: default}\n",
		"other.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: proxy, namespace: kube-system}\n",
		"notes.txt":  "a: [",
		// db-0 is a StatefulSet's, not of this node's name.
		"db.conf.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := kubeletNode()
	Live{Manifests: dir}.fromManifests(s)
	if len(s.Pods) != 1 || string(s.Pods[0].UID) != staticUID || s.Pods[0].Name != "etcd-worker-1" || !s.Partial {
		t.Fatalf("pods: %+v, partial %t", s.Pods, s.Partial)
	}
	n, err := s.nodes().lookup("etcd/etcd")
	if err != nil {
		t.Fatal(err)
	}
	v := n.values(kube.Options{})[0]
	if v.File != "cpu.weight" || v.Field != "requests.cpu=100m" {
		t.Errorf("%+v", v)
	}
	for _, p := range (audit{s, kube.Options{}}).problems() {
		if p.Kind == "orphan" {
			t.Errorf("a pod nobody could tell of is an orphan: %+v", p)
		}
	}
	// A runtime knows all pods: one it does not know is one.
	s.Runtimes = []string{"unix:///run/containerd/containerd.sock"}
	for uid, id := range s.Names {
		id.InRuntime = uid != busyUID
		s.Names[uid] = id
	}
	var orphans []string
	for _, p := range (audit{s, kube.Options{}}).problems() {
		if p.Kind == "orphan" {
			orphans = append(orphans, p.Pod)
		}
	}
	if strings.Join(orphans, " ") != "default/busy-x7f2q" {
		t.Errorf("orphans: %q", orphans)
	}
}

// What kubelet's managers gave a container is where it should be, and nobody else should be there.
func TestKubeletPins(t *testing.T) {
	dir := t.TempDir()
	for name, v := range map[string]any{
		"cpu_manager_state":    map[string]any{"policyName": "static", "defaultCpuSet": "0-1", "entries": map[string]any{pinnedUID: map[string]string{"postgres": "2-3"}, "gone": map[string]string{"x": "1"}}},
		"memory_manager_state": map[string]any{"policyName": "Static", "entries": map[string]any{pinnedUID: map[string]any{"postgres": []any{map[string]any{"numaAffinity": []int{0}, "type": "memory", "size": 1}}}}},
	} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := kubeletNode()
	if err := (Live{KubeletDir: dir}).pins(s); err != nil {
		t.Fatal(err)
	}
	if got := s.Pins[pinnedUID]["postgres"]; got != (Pin{CPUs: "2-3", Mems: "0"}) || len(s.Pins) != 1 {
		t.Errorf("pins: %+v", s.Pins)
	}
	resources := makeContainer("postgres", nil, amount("cpu", "2", "memory", "1Gi")).Resources
	s.use([]corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0", UID: pinnedUID},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "postgres", Resources: resources}}},
	}}, "file")
	n, err := s.nodes().lookup("db-0/postgres")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Value{}
	for _, v := range n.values(kube.Options{}) {
		got[v.File] = v
	}
	if v := got["cpu.max"]; v.Want != "max 100000" || v.Differs || !strings.Contains(v.Computed, "CPUs of its own") {
		t.Errorf("quota: %+v", v)
	}
	if v := got["cpuset.cpus"]; v.Want != "2-3" || v.Differs {
		t.Errorf("CPUs: %+v", v)
	}
	if v := got["cpuset.mems"]; v.Want != "0" || !v.Differs {
		t.Errorf("memory nodes: %+v", v)
	}
	over := audit{s, kube.Options{}}.overlaps()
	if len(over) != 1 || over[0].Pod != "default/busy-x7f2q/work" || !strings.Contains(over[0].Text, "CPUs 2-3, which default/db-0/postgres has") {
		t.Errorf("overlap: %+v", over)
	}
	if err := os.WriteFile(filepath.Join(dir, "cpu_manager_state"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Live{KubeletDir: dir}).pins(s); err == nil || !strings.Contains(err.Error(), "cpu_manager_state") {
		t.Errorf("a broken state: %v", err)
	}
}

// What has no group any more is told of by its status.
func TestExplainGone(t *testing.T) {
	s := kubeletNode()
	began := metav1.Unix(1_700_000_000, 0)
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "greedy-worker-1", UID: "zzz"}, Spec: corev1.PodSpec{NodeName: "worker-1"}}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory.",
		ContainerStatuses: []corev1.ContainerStatus{{Name: "eats", RestartCount: 2, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "OOMKilled", StartedAt: began, FinishedAt: metav1.Unix(1_700_000_007, 0),
		}}}},
	}
	s.use([]corev1.Pod{p}, "file")
	for _, name := range []string{"greedy", "greedy-worker-1", "default/greedy-worker-1", "zzz"} {
		e, ok := s.explainGone(name)
		got := strings.Join(e.Before, "\n")
		want := "the pod is Failed and has no group: nothing of it runs.\nEvicted: The node was low on resource: memory.\n" +
			"container eats ended at 2023-11-14T22:13:27Z with exit code 137, OOMKilled, after 7s; it was restarted 2 times."
		if !ok || got != want {
			t.Errorf("%s: %t\n%s", name, ok, got)
		}
	}
	if _, ok := s.explainGone("nobody"); ok {
		t.Error("told of a pod that is not")
	}
}
