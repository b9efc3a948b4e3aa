package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestProjectQuota has the pods' directories on a file system with project quotas: a pod that is to have no more than
// it may is told so by the kernel when it writes, and goes on.
func TestProjectQuota(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	file, root := filepath.Join(n.Dir, "quota.img"), filepath.Join(n.Dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, file, "")
	if err := os.Truncate(file, 512<<20); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", file}, {
			"mount", "-o", "loop,prjquota", file,
			root,
		},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("this machine has no project quotas: %s: %v: %s", args[0], err, out)
		}
	}
	n.disks = append(n.disks, root)
	n.start()
	const fills = "dd if=/dev/zero of=/v/f bs=64k count=128 2>/dev/null; stat -c %s /v/f"
	n.apply("full.yaml", pod("full", "\n  volumes: [{name: v, emptyDir: {sizeLimit: 2Mi}}, {name: free, emptyDir: "+
		"{}}]\n  containers: [{name: main, image: "+image+", command: [sleep, '1000000'], "+
		"volumeMounts: [{name: v, mountPath: /v}, {name: free, mountPath: /free}]}]"))
	n.waitReady("full")
	for range 2 {
		if got := strings.TrimSpace(n.sh("full", fills)); got == "8388608" || len(got) != 7 {
			t.Errorf("%s bytes fit into 2Mi", got)
		}
		if got := n.sh("full", "dd if=/dev/zero of=/free/f bs=64k count=128 2>/dev/null; stat -c %s "+
			"/free/f"); got != "8388608\n" {
			t.Errorf("%q bytes fit where there is no limit", got)
		}
		n.kill()
		n.start()
	}
	if p := n.waitReady("full"); p.Status.Phase != corev1.PodRunning || containerState(p, "main").RestartCount != 0 {
		t.Errorf("%+v", p.Status)
	}
	n.remove("full.yaml")
	n.waitGone("full")
	n.requireNoPods()
}
