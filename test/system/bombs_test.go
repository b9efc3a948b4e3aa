package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/filetree"
)

// beside starts a pod that is not to notice what happens beside it. The function that it returns requires that it has
// not, that the agent answers, and that just those pods have ended that should; then it removes all of them.
func (n *Node) beside() func(ended int) {
	n.t.Helper()
	n.apply("quiet.yaml", pod("quiet", idle))
	before := n.waitReady("quiet")
	return func(ended int) {
		n.t.Helper()
		n.requireSame(before, n.waitReady("quiet"))
		if got := n.sh("quiet", "echo here"); got != "here\n" {
			n.t.Errorf("exec beside the bomb: %q", got)
		}
		if !n.healthy() {
			n.t.Error("the node is not well")
		}
		n.requireDecisions(ended)
		files, err := filepath.Glob(filepath.Join(n.Dir, "manifests", "*"))
		if err != nil {
			n.t.Fatal(err)
		}
		for _, f := range files {
			n.remove(filepath.Base(f))
		}
		n.requireNoPods()
	}
}

// bomb is a pod that does not come back, of which a shell runs a command.
func bomb(name, command, container, more string) string {
	return pod(name, "\n  restartPolicy: Never"+more+"\n  containers: [{name: main, image: "+image+
		", command: [sh, -c, '"+command+"']"+container+"}]")
}

// TestForkBomb has a pod make processes without end. It has as many as it may, and others have theirs.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--pod-max-pids=64")
	unharmed := n.beside()
	n.apply("bomb.yaml", bomb("bomb", "(f() { while :; do f & done; }; f) 2>/dev/null & exec sleep 1000000", "", ""))
	p := n.waitReady("bomb")
	container := n.groupsOf(p.Status.ContainerStatuses[0].ContainerID)
	n.eventually("the kernel to refuse processes of the pod", func() error {
		for _, group := range container {
			for _, dir := range []string{group, filepath.Dir(group)} {
				b, err := os.ReadFile(filepath.Join(dir, "pids.events"))
				if count, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "max "); err == nil && ok && count != "0" {
					return nil
				}
			}
		}
		return fmt.Errorf("in %q it has refused none", container)
	})
	// The kernel counts a process before it refuses it.
	n.eventually("the pod to have no more than it may", func() error {
		for _, group := range container {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(group), "pids.current"))
			if err != nil {
				continue // another hierarchy
			}
			if has, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || has > 64 {
				return fmt.Errorf("it has %d tasks, %w", has, err)
			}
		}
		return nil
	})
	if p := n.pod("bomb"); !isReady(p) || p.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the bomb: %+v", p.Status)
	}
	unharmed(0)
}

// TestInodeBomb has a pod make files without end. It goes when there are few inodes left, and all of them are free
// again.
func TestInodeBomb(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.inodesFree<20%", "--eviction-pressure-transition-period=1s")
	n.disk("root", "300m,nr_inodes=20000")
	n.start()
	unharmed := n.beside()
	n.apply("bomb.yaml", bomb("bomb", "cd /data; seq 1000000 | xargs touch; sleep 1000000",
		", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
	n.requireEvicted("bomb", "inodes")
	n.waitCondition("DiskPressure", "False")
	n.apply("late.yaml", pod("late", idle))
	n.waitReady("late")
	if all := n.requireDecisions(1); all[0].Signal != "nodefs.inodesFree" || all[0].Pod.Name != "bomb-node" {
		t.Errorf("%+v", all)
	}
	unharmed(1)
}

// TestLogBomb has a pod write to its standard output as fast as it can, on a small disk for logs. What is kept of it is
// no more than it may be at any time, and it is not ended for what was never kept.
func TestLogBomb(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--log-max-size=1Mi", "--log-max-files=3")
	if n.peer != nil {
		t.Skip("other runtimes do not rotate as they write")
	}
	logs := n.disk("logs", "16m")
	n.start()
	unharmed := n.beside()
	const bytes = 200 << 20
	n.apply("bomb.yaml", bomb("bomb", fmt.Sprintf("yes $(seq -s - 200) | head -c %d; touch /said; sleep 1000000", bytes),
		", resources: {limits: {ephemeral-storage: 8Mi}}", ""))
	n.waitReady("bomb")
	n.eventually("everything to have been said", func() error {
		use, err := filetree.Count(t.Context(), logs)
		// One that is rotated away may be there for a moment still.
		if err == nil && use.Bytes > 6<<20 {
			t.Errorf("%d bytes of logs", use.Bytes)
		}
		if _, _, code := n.berth("exec", "bomb", "--", "test", "-e", "/said"); code != 0 {
			return errors.New("it goes on")
		}
		return nil
	})
	if out := n.must("logs", "bomb", "--tail=1"); !strings.Contains(out, "-199-200") && !strings.Contains(out, "1-2-3-4") {
		t.Errorf("the last of it: %.100q", out)
	}
	if p := n.pod("bomb"); !isReady(p) {
		t.Errorf("the bomb: %+v", p.Status)
	}
	unharmed(0)
}

// TestDiskLimitBombs has pods fill an emptyDir with a limit and their own layers. Both go for it, the node is never
// short, and it is told why.
func TestDiskLimitBombs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.available<10%")
	n.disk("root", "400m")
	n.start()
	unharmed := n.beside()
	fills := func(dir string) string {
		return "for i in $(seq 40); do dd if=/dev/zero of=" + dir + "/$i bs=1M count=1 2>/dev/null; done; sleep 1000000"
	}
	n.apply("volume.yaml", bomb("volume", fills("/data"), ", volumeMounts: [{name: data, mountPath: /data}]",
		"\n  volumes: [{name: data, emptyDir: {sizeLimit: 8Mi}}]"))
	n.apply("layer.yaml", bomb("layer", fills("/var"), ", resources: {limits: {ephemeral-storage: 8Mi}}", ""))
	for name, path := range map[string]string{"hosts": "/etc/hosts", "message": "/dev/termination-log"} {
		n.apply(name+".yaml", bomb(name, "dd if=/dev/zero of="+path+" bs=1M count=20; sleep 1000000",
			", resources: {limits: {ephemeral-storage: 8Mi}}", ""))
	}
	const ofPod = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. "
	want := map[string]struct{ message, signal string }{
		"volume":  {`Usage of EmptyDir volume "data" exceeds the limit "8Mi". `, "emptydirfs.limit"},
		"layer":   {ofPod, "ephemeralpodfs.limit"},
		"hosts":   {ofPod, "ephemeralpodfs.limit"},
		"message": {ofPod, "ephemeralpodfs.limit"},
	}
	for name, w := range want {
		p := n.waitPhase(name, corev1.PodFailed)
		if p.Status.Reason != "Evicted" || p.Status.Message != w.message {
			t.Errorf("%s: %s: %q", name, p.Status.Reason, p.Status.Message)
		}
	}
	evictions := map[string]float64{}
	for _, w := range want {
		evictions[w.signal]++
	}
	for _, d := range n.requireDecisions(len(want)) {
		if w := want[strings.TrimSuffix(d.Pod.Name, "-node")]; d.Signal != w.signal || d.GraceSeconds != 1 || d.Result.Error != "" && !d.Result.Told {
			t.Errorf("%+v", d)
		}
	}
	for name, w := range want {
		if out := n.must("eviction", "why", name); !strings.Contains(out, w.signal) || !strings.Contains(out, "used of 8Mi") {
			t.Error(out)
		}
		if out := n.must("events", name); strings.Count(out, strings.TrimSpace(w.message)) != 1 {
			t.Errorf("events of %s:\n%s", name, out)
		}
		if got := n.metrics("/metrics").get(t, "kubelet_evictions", map[string]string{"eviction_signal": w.signal}); got != evictions[w.signal] {
			t.Errorf("kubelet_evictions of %s is %v", w.signal, got)
		}
	}
	if out := n.must("eviction", "status"); strings.Contains(out, "True") {
		t.Errorf("the node was short:\n%s", out)
	}
	unharmed(len(want))
}

// TestVolumeBomb has a pod fill a PersistentVolume of its own. It is told by the kernel that it is full, and that is
// all: neither the node nor its own limits have to do with it.
func TestVolumeBomb(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.available<10%", "--node-labels=disk=ssd")
	n.disk("root", "300m")
	disk := n.disk("volume", "16m")
	n.start()
	unharmed := n.beside()
	n.apply("volume.yaml", strings.TrimPrefix(localVolume("disk", "16Mi", disk, "bomb", ""), "---\n")+`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: mine}
spec: {volumeName: disk, storageClassName: fields, accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
`)
	n.apply("bomb.yaml", bomb("bomb", "dd if=/dev/zero of=/data/f bs=64k count=4000; echo ended; sleep 1000000",
		", resources: {limits: {ephemeral-storage: 4Mi}}, volumeMounts: [{name: data, mountPath: /data}]",
		"\n  volumes: [{name: data, persistentVolumeClaim: {claimName: mine}}]"))
	before := n.waitReady("bomb")
	n.eventually("the volume to be full", func() error {
		if out := n.must("logs", "bomb"); !strings.Contains(out, "No space left on device") || !strings.Contains(out, "ended") {
			return errors.New(out)
		}
		return nil
	})
	n.requireSame(before, n.waitReady("bomb"))
	if out := n.must("eviction", "rank", "--signal", "nodefs.available"); !strings.Contains(out, "default/bomb-node") || strings.Contains(out, "16Mi") {
		t.Errorf("what it has on the node's disk:\n%s", out)
	}
	if out := n.must("eviction", "status"); strings.Contains(out, "True") {
		t.Errorf("the node is short:\n%s", out)
	}
	n.remove("bomb.yaml")
	n.waitGone("bomb")
	if err := os.Remove(filepath.Join(disk, "f")); err != nil {
		t.Errorf("what it had written is its volume's: %v", err)
	}
	unharmed(0)
}

// TestDeadGoBeforePods has a pod of which a container has died that had written much, and one that fills the disk up to
// the threshold: what is dead goes, and no pod does.
func TestDeadGoBeforePods(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.available<40%", "--eviction-pressure-transition-period=1s")
	n.disk("root", "300m")
	n.start()
	unharmed := n.beside()
	n.apply("again.yaml", pod("again", `
  containers:
  - {name: c, image: `+image+`, command: [sh, -c, 'test -e /v/1 && exec sleep 1000000; dd if=/dev/zero of=/big bs=1M count=80; touch /v/1'], volumeMounts: [{name: v, mountPath: /v}]}
  volumes: [{name: v, emptyDir: {}}]`))
	ready := n.wait("again", "ready again", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	n.apply("filler.yaml", bomb("filler", "dd if=/dev/zero of=/data/f bs=1M count=100; sleep 1000000", ", volumeMounts: [{name: data, mountPath: /data}]",
		"\n  volumes: [{name: data, emptyDir: {}}]"))
	type reclaimed struct {
		Signal    string `json:"signal"`
		Reclaimed int64  `json:"reclaimed"`
	}
	var all []reclaimed
	n.eventually("something to be removed", func() error {
		var said struct{ Decisions []reclaimed }
		if err := json.Unmarshal([]byte(n.must("eviction", "why", "-o", "json")), &said); err != nil {
			return err
		}
		all = said.Decisions
		if len(all) == 0 {
			return errors.New(n.must("eviction", "status"))
		}
		return nil
	})
	if len(all) != 1 || all[0].Signal != "nodefs.available" || all[0].Reclaimed < 80<<20 || all[0].Reclaimed > 82<<20 {
		t.Errorf("%+v", all)
	}
	n.waitCondition("DiskPressure", "False")
	n.requireSame(ready, n.pod("again"))
	n.waitReady("filler")
	unharmed(0)
}
