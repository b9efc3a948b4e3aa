package system

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/oom"
)

// TestInspect looks at pods with nothing but the run directory, with an agent and without.
func TestInspect(t *testing.T) {
	t.Parallel()
	// or the agent may have corrected it before check looks
	n := startNode(t, "--cri-socket=cri.sock", "--cgroup-drift=report")
	n.apply("load.yaml", load)
	p := n.waitReady("load")
	n.waitReady("greedy")
	busy := n.groupOf(p, p.Status.ContainerStatuses[0])
	quota := func() string {
		path := filepath.Join("/sys/fs/cgroup/cpu", busy, "cpu.cfs_quota_us")
		if _, err := os.Stat(path); err != nil {
			path = filepath.Join("/sys/fs/cgroup", busy, "cpu.max")
		}
		return path
	}()
	look := func(args ...string) (string, int) {
		out, errs, code := n.berth(append([]string{"cgroups"}, args...)...)
		return out + errs, code
	}
	says := func(code int, words []string, args ...string) {
		t.Helper()
		got, c := look(args...)
		for _, w := range words {
			if !strings.Contains(got, w) {
				t.Errorf("berth cgroups %s does not say %q:\n%s", strings.Join(args, " "), w, got)
			}
		}
		if c != code {
			t.Errorf("berth cgroups %s: exit code %d, want %d\n%s", strings.Join(args, " "), c, code, got)
		}
	}
	says(0, []string{"default/load-node", "busy", "quiet", "(sandbox)"}, "tree")
	says(0, []string{"limits.cpu=100m", "limits.memory=64Mi"}, "show", "load/busy")
	n.eventually("the busy one to be throttled", func() error { // not before it gets more than its quota of a processor
		if got, _ := look("explain", "load"); !strings.Contains(got, "throttled") {
			return errors.New(got)
		}
		return nil
	})
	says(0, []string{"throttled", "number "}, "explain", "load")
	says(0, []string{"default/load-node", "busy"}, "find", n.processesIn(busy)[0])
	says(0, []string{"all as they should be"}, "check")
	says(4, []string{"not found"}, "show", "nobody")
	n.eventually("greedy to be killed", func() error {
		if got, _ := look("explain", "greedy"); !strings.Contains(got, "the OOM killer took") {
			return os.ErrNotExist
		}
		return nil
	})
	capture := filepath.Join(n.Dir, "capture.json.gz")
	says(0, nil, "--capture", capture)
	says(0, []string{"default/load-node"}, "--from", capture, "tree", "-p", "memory")

	// Without the agent's word, as on a kubelet's node: the runtime's socket and the logs tell names, a file the
	// specifications.
	strange := []string{
		"--run-dir=" + t.TempDir(), "--cgroup-root=" + n.CgroupRoot, "--log-dir=" + t.TempDir(),
		"--manifests=" + t.TempDir(),
	}
	byRuntime := append(strange, "--runtime-endpoint="+filepath.Join(n.Dir, "run", "cri.sock"))
	says(0, []string{"default/load-node", "busy", "quiet", "(sandbox)"}, append(byRuntime, "tree")...)
	says(0, []string{"missing groups and drift cannot be told", "as they should be"}, append(byRuntime, "check")...)
	says(0, []string{"its specification is not known"}, append(byRuntime, "show", "default/load-node")...)
	says(1, []string{"ask runtime", "none.sock"}, append(strange, "--runtime-endpoint=/none.sock", "tree")...)
	pods := filepath.Join(n.Dir, "pods.json")
	write(t, pods, n.must("pods", "-o", "json"))
	says(0, []string{"limits.cpu=100m"}, append(strange, "--pods="+pods, "show", "default/load-node/busy")...)
	says(0, []string{"default/load-node", "(sandbox)"}, "--run-dir="+filepath.Join(n.Dir, "run"), "tree")

	// Somebody changes a value.
	if err := os.WriteFile(quota, []byte(strconv.Itoa(12000)), 0); err != nil {
		t.Fatal(err)
	}
	says(1, []string{"drift", "12000"}, "check")
	if err := os.WriteFile(quota, []byte(strconv.Itoa(10000)), 0); err != nil {
		t.Fatal(err)
	}
	n.stop()
	says(0, []string{"default/load-node", "busy", "(sandbox)"}, "tree")
	says(0, []string{"cpu."}, "show", "load/busy")
	n.start()
	n.remove("load.yaml")
	n.wait("load", "gone", func(p *corev1.Pod) bool { return p == nil })
	n.requireNoPods()
}

// A container that was killed for want of memory: who, with what, by whose limit is told by describe and explain, also
// when an agent has come after the kill, and the pod has gone on.
func TestKillsAreExplained(t *testing.T) {
	t.Parallel()
	l, err := oom.OpenLog(oom.LogPath, true)
	if err != nil {
		t.Skipf("the kernel's log cannot be read here: %v", err)
	}
	l.Close()
	n := newNode(t)
	n.start()
	n.apply("eater.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: eater}\nspec:\n  restartPolicy: Never\n  "+
		"containers: [{name: eats, image: "+image+
		", command: [sh, -c, 'tail /dev/zero; exit 3'], resources: {limits: {memory: 24Mi}}}, {name: stays, image: "+
		""+image+", command: [sleep, '1000'], resources: {limits: {memory: 24Mi}}}]\n")
	// The kernel charges memory in batches that it may have in hand at the moment of a kill: what is used then is less
	// than the limit.
	limit := regexp.MustCompile(`the container itself used 2[34][.0-9]*Mi of its limit of 24Mi`)
	told := func(args ...string) {
		n.t.Helper()
		n.eventually(strings.Join(args, " ")+" to tell of the kill", func() error {
			got, said, code := n.berth(args...)
			if code != 0 {
				return errors.New(said) // the agent may not have read the manifest yet
			}
			if !strings.Contains(got, "container eats") ||
				!strings.Contains(got, "(tail) was killed for want of memory, with ") || !limit.MatchString(got) {
				return errors.New(got)
			}
			return nil
		})
	}
	told("describe", "eater")
	told("cgroups", "explain", "eater")
	n.kill()
	n.start()
	told("cgroups", "explain", "eater")
	// It is written a moment after it is told: until then the kernel's log has it.
	n.eventually("one kill to be kept", func() error {
		data, err := os.ReadFile(filepath.Join(n.Dir, "root", "kills.json"))
		if err == nil && strings.Count(string(data), `"kill":`) != 1 {
			err = errors.New(string(data))
		}
		return err
	})
}
