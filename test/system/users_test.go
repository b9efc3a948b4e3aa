package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const ownUsers = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 1
  volumes: [{name: e, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}, {name: h, hostPath: {path: HOST, type: Directory}}]
  containers:
  - name: main
    image: ` + image + `
    command: [sh, -c, 'trap "exit 0" TERM; touch /e/root /h/NAME; while :; do sleep 1000 & wait; done']
    securityContext: {capabilities: {add: [NET_ADMIN]}}
    volumeMounts: [{name: e, mountPath: /e}, {name: m, mountPath: /m}, {name: h, mountPath: /h}, {name: e, mountPath: /sub, subPath: sub}]
  - name: user
    image: ` + image + `
    command: [sh, -c, 'trap "exit 0" TERM; touch /e/user; while :; do sleep 1000 & wait; done']
    securityContext: {runAsUser: 1000, runAsGroup: 1000}
    volumeMounts: [{name: e, mountPath: /e}]
`

// TestOwnUsers runs pods with hostUsers: false: root in them is nobody on the node, each has ids of its own, their
// volumes do not show it, and all of that goes on with the next agent.
func TestOwnUsers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	host := filepath.Join(n.Dir, "host")
	// Their root has to pass to its root file system, so the directories must let others through, as those in /run and
	// /var/lib do.
	for _, err := range []error{os.Chmod(n.Dir, 0o711), os.MkdirAll(host, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	pod := ownUsers
	if !kernelAtLeast(t, 6, 3) {
		// tmpfs shows no other ids there, so the volume in memory is one more on the disk.
		pod = strings.Replace(pod, "emptyDir: {medium: Memory}", "emptyDir: {}", 1)
	}
	manifest := func(name string) string {
		return strings.NewReplacer("NAME", name, "HOST", host).Replace(pod)
	}
	n.apply("a.yaml", manifest("a")+"---"+manifest("b"))
	a, b := n.waitReady("a"), n.waitReady("b")

	first, second := n.hostRoot(a, "main"), n.hostRoot(b, "main")
	if first == second || first%65536 != 0 || second%65536 != 0 {
		t.Errorf("the roots of two pods are users %d and %d", first, second)
	}
	empty := filepath.Join(n.Dir, "root/pods", string(a.UID), "volumes/kubernetes.io~empty-dir/e")
	for file, want := range map[string]uint32{
		filepath.Join(empty, "root"): 0, filepath.Join(empty, "user"): 1000,
		filepath.Join(host, "a"): 0,
	} {
		n.eventually(file+" to be there", func() error {
			fi, err := os.Stat(file)
			if err != nil {
				return err
			}
			if got := fi.Sys().(*syscall.Stat_t).Uid; got != want {
				return fmt.Errorf("it belongs to user %d, not %d", got, want)
			}
			return nil
		})
	}
	checks := map[string]string{
		"id -u; stat -c %u:%g /e/root /e/user " +
			"/h/a": "0\n0:0\n1000:1000\n0:0\n",
		"echo x > /m/f; echo x > /sub/f; stat -c %u /m/f /sub/f /e/sub/f /etc/hosts /dev/termination-log": "0\n0\n0\n0\n0\n",
		"ip link add d0 type bridge && ip link del d0 && echo ok":                                         "ok\n",
		"mknod /x b 7 0 2>/dev/null || echo denied":                                                       "denied\n",
		"hostname": "a-node\n",
		"chown 70000 /e/root 2>/dev/null || echo denied":           "denied\n",
		"mount -o remount,rw /proc/sys 2>/dev/null || echo denied": "denied\n",
	}
	for script, want := range checks {
		if got := n.sh("a", script); want != "" && got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	if got := n.must("exec", "-c", "user", "a", "--", "sh", "-c",
		"id -u; grep CapEff /proc/self/status"); got != "1000\nCapEff:\t0000000000000000\n" {
		t.Errorf("user: got %q", got)
	}

	// The next agent knows whose ids are whose.
	n.kill()
	n.start()
	n.apply("c.yaml", manifest("c"))
	c := n.waitReady("c")
	if got := n.hostRoot(n.pod("a"), "main"); got != first {
		t.Errorf("after a restart the pod's root is user %d, not %d", got, first)
	}
	if got := n.hostRoot(c, "main"); got == first || got == second {
		t.Errorf("a new pod has the ids of another, from %d on", got)
	}
	if got := n.sh("a", "id -u"); got != "0\n" {
		t.Errorf("exec after a restart: got %q", got)
	}
	n.remove("a.yaml")
	n.remove("c.yaml")
	for _, name := range []string{"a", "b", "c"} {
		n.waitGone(name)
	}
	n.requireNoPods()
}

// hostRoot is who root of a container is on the node, by the kernel's word.
func (n *Node) hostRoot(p *corev1.Pod, container string) int {
	n.t.Helper()
	pid := n.containerProcess(p, container)
	b, err := os.ReadFile("/proc/" + pid + "/uid_map")
	if err != nil {
		n.t.Fatal(err)
	}
	var inside, outside, count int
	if _, err := fmt.Sscan(string(b), &inside, &outside, &count); err != nil || inside != 0 || outside == 0 ||
		count != 65536 {
		n.t.Fatalf("uid_map of %s: %q, %v", p.Name, b, err)
	}
	return outside
}

func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &haveMajor, &haveMinor); err != nil {
		t.Fatal(err)
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// containerProcess is a process of the container.
func (n *Node) containerProcess(p *corev1.Pod, container string) string {
	n.t.Helper()
	for _, s := range p.Status.ContainerStatuses {
		if s.Name != container {
			continue
		}
		if all := n.processesIn(n.groupOf(p, s)); len(all) > 0 {
			return all[0]
		}
	}
	n.t.Fatalf("no process of container %s", container)
	return ""
}
