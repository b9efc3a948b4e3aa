package system

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// reboot takes away what a reboot does while no agent runs: processes, namespaces, mounts, groups, links and the run
// directory, and what the disk has of this boot is of another one.
func (n *Node) reboot() {
	n.t.Helper()
	n.eventually("the node's processes to be gone", func() error {
		left := n.processes()
		for _, p := range left {
			var pid int
			if _, err := fmt.Sscanf(p, "process %d", &pid); err != nil {
				n.t.Fatal(err)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	mounts := n.mounts()
	slices.Reverse(mounts)
	for _, m := range mounts {
		if err := unix.Unmount(strings.TrimPrefix(m, "mount "), unix.MNT_DETACH); err != nil {
			n.t.Errorf("unmount %s: %v", m, err)
		}
	}
	n.eventually("the node's groups to be gone", func() error {
		groups := n.cgroups()
		for _, g := range slices.Backward(groups) {
			_ = os.Remove(strings.TrimPrefix(g, "cgroup "))
		}
		if left := n.cgroups(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	if _, err := net.InterfaceByName(n.Bridge); err == nil {
		if out, err := exec.Command("ip", "link", "delete", n.Bridge).CombinedOutput(); err != nil {
			n.t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.RemoveAll(filepath.Join(n.Dir, "run")); err != nil {
		n.t.Fatal(err)
	}
	n.forgetBoot()
}

// forgetBoot has the records on the disk be of another boot.
func (n *Node) forgetBoot() {
	n.t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		n.t.Fatal(err)
	}
	id, other := strings.TrimSpace(string(boot)), "00000000-0000-4000-8000-000000000000"
	const records = 1 << 20
	err = filepath.WalkDir(filepath.Join(n.Dir, "root"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > records {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), id) {
			return err
		}
		return os.WriteFile(path, []byte(strings.ReplaceAll(string(b), id, other)), info.Mode().Perm())
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// tokenFile is where a container has the token of its account.
const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// inPod is what a shell says in a pod, asked on the node.
func (n *Node) inPod(pod, command string) string {
	n.t.Helper()
	out, errs, code := n.berth("exec", pod, "--", "sh", "-c", command)
	if code != 0 {
		n.t.Fatalf("in pod %s: %d %q %s", pod, code, out, errs)
	}
	return out
}

// chosen has a pod run that chooses the node by labels which somebody has just given it: until the node has heard of
// them it refuses such a pod.
func (m *member) chosen(name string, by map[string]string) {
	m.t.Helper()
	for {
		m.create(m.bound(name, func(p *corev1.Pod) { p.Spec.NodeSelector = by }))
		p := m.follow(name, "ready, or refused", func(p *corev1.Pod) bool {
			return p != nil && (isReady(p) || p.Status.Phase == corev1.PodFailed)
		})
		if isReady(p) {
			return
		}
		m.delete(name, new(int64(0)))
		m.apiGone(name)
	}
}

// TestOfflineBoot: a machine that boots while its API server is away runs the pods that it was last told of, with what
// they refer to. When the API server is back, what was deleted meanwhile ends, and the others go on.
func TestOfflineBoot(t *testing.T) {
	t.Parallel()
	m := joined(t, "--offline=keep-pods")
	m.nodeReady()
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "red"}}
	if _, err := m.plane.Client.CoreV1().ConfigMaps("default").Create(t.Context(), settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A pod is here for what only the API server says of the node, and has a token, which only the API server makes.
	_, err := m.plane.Client.CoreV1().Nodes().Patch(t.Context(), m.name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"labels":{"example.com/disk":"ssd"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stays", "goes"} {
		m.create(m.bound(name, func(p *corev1.Pod) {
			p.Spec.Containers[0].Command[2] = "cp " + tokenFile + " /begun; " + p.Spec.Containers[0].Command[2]
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
			}}}
		}))
	}
	first, tokens := map[string]string{}, map[string]string{}
	for _, name := range []string{"stays", "goes"} {
		first[name] = m.apiReady(name).Status.ContainerStatuses[0].ContainerID
		tokens[name] = m.inPod(name, "cat "+tokenFile)
	}

	m.chosen("chosen", map[string]string{"example.com/disk": "ssd"})
	m.create(m.bound("last"))
	m.waitReady("last")
	m.kill() // what has run it knows
	m.delete("goes", new(int64(0)))
	m.apiGone("goes")
	m.plane.Kill()
	m.reboot()
	m.start()
	for _, name := range []string{"stays", "goes"} {
		m.wait(name, "running in another container", func(p *corev1.Pod) bool {
			return isReady(p) && p.Status.ContainerStatuses[0].ContainerID != first[name]
		})
		if out, e, code := m.berth("exec", name, "--", "sh", "-c", "echo $color"); code != 0 || out != "red\n" {
			t.Errorf("in pod %s: %d %q %s", name, code, out, e)
		}
	}
	last := m.waitReady("last")
	m.waitReady("chosen")
	old := m.inPod("stays", "cat /begun")
	if had := tokens["stays"]; had != old {
		t.Errorf("the pod has begun with token %q, and had %q", old, had)
	}
	booted := m.waitReady("stays").Status.ContainerStatuses[0].ContainerID

	m.plane.Again(t)
	m.waitGone("goes")
	m.follow("stays", "running in the container of this boot", func(p *corev1.Pod) bool {
		return p != nil && isReady(p) && p.Status.ContainerStatuses[0].ContainerID == booted
	})
	m.eventually("another token in the pod", func() error {
		if m.inPod("stays", "cat "+tokenFile) == old {
			return errors.New("it is the one of before")
		}
		return nil
	})
	// Until the agent has told of it the API has the pod as it was before the boot.
	m.follow("last", "running in the container of this boot", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[0].ContainerID == last.Status.ContainerStatuses[0].ContainerID
	})
	m.requireSame(last, m.waitReady("last"))
	for _, name := range []string{"stays", "last", "chosen"} {
		m.delete(name, nil)
		m.apiGone(name)
	}
	m.requireNoPods()
}
