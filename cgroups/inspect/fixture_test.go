package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

var (
	update  = flag.Bool("update", false, "write the golden files")
	capture = flag.String("capture", "", "directory to write a fresh capture of this machine to")
)

func amount(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func makePod(name, uid string, priority int32, cs ...corev1.Container) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{Containers: cs, Priority: &priority},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for i, c := range cs {
		id := strings.Repeat(fmt.Sprintf("%s%d", uid[:3], i), 16)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, ContainerID: "berth://" + id})
	}
	return p
}

func makeContainer(name string, requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

// fixturePods are one of each class, one whose limit somebody changed, and one that is gone but for its group.
func fixturePods() []corev1.Pod {
	return []corev1.Pod{
		makePod("db", "aaa11111-1111-4111-8111-111111111111", 1000,
			makeContainer("postgres", amount("cpu", "1", "memory", "256Mi"), amount("cpu", "1", "memory", "256Mi"))),
		makePod("web", "bbb22222-2222-4222-8222-222222222222", 0,
			makeContainer("nginx", amount("cpu", "50m", "memory", "32Mi"), amount("cpu", "100m", "memory", "64Mi")),
			makeContainer("logger", amount("memory", "1Mi"), amount("memory", "64Mi"))),
		makePod("job", "ccc33333-3333-4333-8333-333333333333", -10, makeContainer("work", nil, nil)),
		makePod("changed", "ddd44444-4444-4444-8444-444444444444", 0, makeContainer("app", amount("cpu", "200m"), amount("memory", "100M"))),
		makePod("lost", "eee55555-5555-4555-8555-555555555555", 0, makeContainer("x", nil, nil)),
	}
}

// node makes the pods' groups with processes in them, as an agent and its runtime do, and returns the place.
func node(t *testing.T) (Live, *cgroups.Hierarchy, []corev1.Pod) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes control groups")
	}
	h, err := cgroups.Open("")
	if err != nil {
		t.Skipf("needs a cgroup hierarchy: %v", err)
	}
	root := fmt.Sprintf("/berth-test-%d", os.Getpid())
	tree := kube.NewTree(h, root)
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	if err := tree.Setup(); err != nil {
		t.Fatal(err)
	}
	pods := fixturePods()
	var refs []*corev1.Pod
	for i := range pods {
		p := &pods[i]
		refs = append(refs, p)
		path, err := tree.EnsurePod(p)
		if err != nil {
			t.Fatal(err)
		}
		for j := range p.Spec.Containers {
			c := &p.Spec.Containers[j]
			_, id, _ := strings.Cut(p.Status.ContainerStatuses[j].ContainerID, "://")
			if err := h.Create(path+"/"+id, kube.ContainerResources(p, c, kube.Options{})); err != nil {
				t.Fatal(err)
			}
			script := "sleep 1000"
			if c.Name == "nginx" {
				script = "while :; do :; done"
			}
			// Who may not make a process safer than it is leaves it as it is.
			adj := kube.OOMScoreAdj(p, c, totalMemory())
			start(t, h, path+"/"+id, fmt.Sprintf("echo %d > /proc/self/oom_score_adj 2>/dev/null || :\n", adj)+script)
		}
	}
	var requests []kube.Requests
	for _, p := range refs[:4] {
		requests = append(requests, kube.RequestsOf(p))
	}
	if _, err := tree.SyncQoS(requests); err != nil {
		t.Fatal(err)
	}
	limit := int64(200 << 20)
	if err := h.Update(tree.PodPath(refs[3]), &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
		t.Fatal(err)
	}
	pods = pods[:4]
	list, err := json.Marshal(corev1.PodList{Items: pods})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pods.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return Live{CgroupRoot: root, PodsFile: file, LogDir: t.TempDir()}, h, pods
}

func start(t *testing.T, h *cgroups.Hierarchy, path, script string) {
	t.Helper()
	var join strings.Builder
	for _, f := range h.ProcsFiles(path) {
		fmt.Fprintf(&join, "echo $$ > %s\n", f)
	}
	cmd := exec.Command("/bin/sh", "-ec", join.String()+"echo in\n"+script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("process did not join %s: %q %v", path, line, err)
	}
}

// TestLive reads the real machine; with -capture DIR it leaves the capture there, which is how those in testdata were
// made.
func TestLive(t *testing.T) {
	live, h, pods := node(t)
	throttled := kube.PodPath(live.CgroupRoot, pods[1].UID, corev1.PodQOSBurstable)
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		u, err := h.Stat(throttled + "/" + strings.Repeat("bbb0", 16))
		if err != nil {
			t.Fatal(err)
		}
		if u.CPU.ThrottledPeriods > 3 {
			break
		}
	}
	s, err := live.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, p := range (audit{s, kube.Options{}}).problems() {
		kinds[p.Kind]++
		t.Log(p)
	}
	if kinds["orphan"] != 1 || kinds["drift"] != 1 || len(kinds) != 2 {
		t.Errorf("problems = %v, want one orphan and one drift", kinds)
	}
	n, err := s.nodes().lookup("default/web/nginx")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range n.values(kube.Options{}) {
		if v.Differs {
			t.Errorf("%+v", v)
		}
	}
	if len(n.files.Pids) == 0 {
		t.Fatal("no process seen")
	}
	if f, err := s.nodes().find(fmt.Sprint(n.files.Pids[0])); err != nil || f.Pod != "default/web" || f.Container != "nginx" {
		t.Errorf("find = %+v, %v", f, err)
	}
	if f, err := s.nodes().find(fmt.Sprint(n.files.Inode)); err != nil || f.Path != n.Path {
		t.Errorf("find by inode = %+v, %v", f, err)
	}
	if f, err := s.nodes().find(h.MemoryDir(n.Path) + "/below"); err != nil || f.Path != n.Path {
		t.Errorf("find by path = %+v, %v", f, err)
	}
	if *capture != "" {
		s.Machine.Host, s.Machine.Root = "node", "/"
		groups := map[string]Group{}
		for p, g := range s.Groups {
			groups[strings.TrimPrefix(p, live.CgroupRoot)] = g
		}
		s.Groups, s.PodsFrom = groups, "agent"
		if err := s.Save(filepath.Join(*capture, s.Machine.Mode.String()+".json.gz")); err != nil {
			t.Fatal(err)
		}
	}
}
