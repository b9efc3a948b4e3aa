package system

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/filetree"
)

// filesWithoutEnd is a script that goes on also when no file can be made for a while.
const filesWithoutEnd = "i=0; while :; do i=$((i+9999)); seq $((i-9999)) $i | xargs touch; done"

// TestManyFileBombs has more pods make files without end than are counted at once, in volumes and in their own layers,
// beside pods that have some files each. Just the bombs go, as many as have to, and all others run on.
func TestManyFileBombs(t *testing.T) {
	if !long() {
		t.Skip("keeps a machine busy for minutes: make test-long")
	}
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.inodesFree<30%", "--eviction-pressure-transition-period=1s")
	n.disk("root", "1g,nr_inodes=60000")
	n.start()
	unharmed := n.beside()
	const bombs, others = 20, 4
	before := map[string]*corev1.Pod{}
	for i := range others {
		name := fmt.Sprintf("other%d", i)
		n.apply(name+".yaml", bomb(name, "cd /data; seq 200 | xargs touch; sleep 1000000",
			", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
		before[name] = n.waitReady(name)
	}
	for i := range bombs {
		name, dir := fmt.Sprintf("bomb%02d", i), []string{"/data", "/var"}[i%2]
		n.apply(name+".yaml", bomb(name, "sleep 5; cd "+dir+"; "+filesWithoutEnd,
			", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
	}
	for i := range bombs {
		n.requireEvicted(fmt.Sprintf("bomb%02d", i), "inodes")
	}
	n.waitCondition("DiskPressure", "False")
	for _, d := range n.requireDecisions(bombs) {
		if d.Signal != "nodefs.inodesFree" || !strings.HasPrefix(d.Pod.Name, "bomb") {
			t.Errorf("%+v", d)
		}
	}
	for name, was := range before {
		n.requireSame(was, n.waitReady(name))
	}
	unharmed(bombs)
}

// TestLogBombOverLimit has pods say more than they may keep, one of them in empty lines, of which the log has forty
// times as much. Each goes for what is kept of it, which is never more than that may be, and what is beside them runs
// on.
func TestLogBombOverLimit(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--log-max-size=4Mi", "--log-max-files=3")
	if n.peer != nil {
		t.Skip("other runtimes do not rotate as they write")
	}
	logs := n.disk("logs", "64m")
	n.start()
	unharmed := n.beside()
	bombs := map[string]string{"lines": "yes", "empty": `yes ""`, "zeros": "cat /dev/zero"}
	for name, command := range bombs {
		n.apply(name+".yaml", bomb(name, command, ", resources: {limits: {ephemeral-storage: 2Mi}}", ""))
	}
	n.eventually("all of them to have ended", func() error {
		use, err := filetree.Count(t.Context(), logs)
		// Of each one that is rotated away may be there for a moment still.
		if most := uint64(len(bombs)) * 16 << 20; err == nil && use.Bytes > most {
			t.Errorf("%d bytes of logs", use.Bytes)
		}
		for name := range bombs {
			if p := n.pod(name); p == nil || p.Status.Phase != corev1.PodFailed {
				return fmt.Errorf("%s runs", name)
			}
		}
		return nil
	})
	for name := range bombs {
		if s := n.pod(name).Status; s.Reason != "Evicted" || !strings.HasPrefix(s.Message, "Pod ephemeral local storage usage exceeds") {
			t.Errorf("%s: %s: %s", name, s.Reason, s.Message)
		}
	}
	unharmed(len(bombs))
}

// TestKilledBesideFileBombs kills the agent again and again while pods fill a disk: each next one goes on, also where
// no record can be written any more, and nobody goes but the bombs.
func TestKilledBesideFileBombs(t *testing.T) {
	if !long() {
		t.Skip("keeps a machine busy for minutes: make test-long")
	}
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.inodesFree<30%", "--eviction-pressure-transition-period=1s")
	n.disk("root", "1g,nr_inodes=30000")
	n.start()
	n.apply("quiet.yaml", bomb("quiet", "cd /data; seq 200 | xargs touch; sleep 1000000",
		", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
	before := n.waitReady("quiet")
	const bombs = 8
	for i := range bombs {
		name := fmt.Sprintf("bomb%d", i)
		n.apply(name+".yaml", bomb(name, "sleep 5; cd /data; "+filesWithoutEnd,
			", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
		n.waitReady(name)
	}
	for i := range 4 {
		n.eventually("pods to be ended", func() error {
			data, err := os.ReadFile(n.Log)
			if err == nil && strings.Count(string(data), "pod was evicted") <= i {
				err = errors.New("no other one yet")
			}
			return err
		})
		n.kill()
		n.start()
	}
	for i := range bombs {
		n.wait(fmt.Sprintf("bomb%d", i), "over", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
	}
	n.waitCondition("DiskPressure", "False")
	n.requireSame(before, n.waitReady("quiet"))
	for _, d := range n.decisions() {
		if !strings.HasPrefix(d.Pod.Name, "bomb") {
			t.Errorf("%+v", d)
		}
	}
	if data, err := os.ReadFile(n.Log); err != nil || strings.Contains(string(data), "pod=default/quiet-node") {
		t.Errorf("the log tells of the quiet one, %v", err)
	}
}

// TestFilesOfEndedPodsGo has pods end with much in their own file systems, where nobody can read it any more: that goes
// before any pod does, and what became of the pods stays known, also to the next agent.
func TestFilesOfEndedPodsGo(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.available<40%", "--eviction-pressure-transition-period=1s")
	if n.peer != nil {
		t.Skip("other runtimes keep the files of a container as long as the container")
	}
	n.disk("root", "300m")
	n.start()
	unharmed := n.beside()
	for name, c := range map[string]struct {
		code  int
		phase corev1.PodPhase
	}{"done": {0, corev1.PodSucceeded}, "failed": {1, corev1.PodFailed}} {
		n.apply(name+".yaml", bomb(name, fmt.Sprintf("dd if=/dev/zero of=/big bs=1M count=40; echo words; exit %d", c.code), "", ""))
		n.waitPhase(name, c.phase)
	}
	n.apply("filler.yaml", bomb("filler", "dd if=/dev/zero of=/data/f bs=1M count=110; sleep 1000000",
		", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
	filler := n.waitReady("filler")
	n.eventually("something to be removed", func() error {
		if out := n.must("eviction", "why"); !strings.Contains(out, "nodefs.available") {
			return errors.New(out)
		}
		return nil
	})
	n.waitCondition("DiskPressure", "False")
	n.kill()
	n.start()
	n.requireSame(filler, n.waitReady("filler"))
	for name, code := range map[string]int32{"done": 0, "failed": 1} {
		s := n.pod(name).Status.ContainerStatuses[0]
		if end := s.State.Terminated; end == nil || end.ExitCode != code || s.RestartCount > 0 {
			t.Errorf("%s: %+v", name, s)
		}
		if out := n.must("logs", name); !strings.Contains(out, "words") {
			t.Errorf("log of %s: %q", name, out)
		}
	}
	unharmed(0)
}
