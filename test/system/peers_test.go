package system

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/test/peer"
)

// peers has the runtime of each test that is run on another than the embedded one, by the test's name. What is run
// below such a test has nodes with that runtime.
var peers sync.Map

func peerOf(t *testing.T) (peer.Program, bool) {
	for name := t.Name(); ; {
		if p, ok := peers.Load(name); ok {
			return p.(peer.Program), true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return peer.Program{}, false
		}
		name = name[:i]
	}
}

func (n *Node) usePeer(p peer.Program) {
	n.t.Helper()
	n.peer = peer.New(n.t, p, peer.Place{
		Dir: n.Dir + "/peer", Bridge: n.Bridge, CIDR: n.CIDR, Images: filepath.Dir(testImages(n.t)[0]), Log: n.Dir +
			"/peer.log",
	})
	n.peer.Start(n.t)
}

// peerLacks are the cases of [TestFields] that runtimes other than the embedded one cannot pass, and why, by their
// releases.
var peerLacks = map[string]map[string]string{
	"stop-signal": {
		peer.Containerd16: "takes the stop signal from the image alone",
		peer.Containerd22: "takes the stop signal from the image alone",
		peer.CRIO134:      "takes the stop signal from the image alone",
	},
	"groups-strict": {peer.Containerd16: "is older than the policy of supplemental groups"},
	"own-users": {
		peer.Containerd16: "is older than user namespaces", peer.Containerd22: noIDMaps,
		peer.CRIO134: noIDMaps,
	},
	"proc-unmasked": {
		peer.Containerd16: "is older than user namespaces", peer.Containerd22: noIDMaps,
		peer.CRIO134: noIDMaps,
	},
	"image-volume":          {peer.Containerd16: "is older than image volumes"},
	"recursively-read-only": {peer.Containerd16: "is older than recursive read-only mounts"},
	"app-armor-missing":     {peer.CRIO134: "sets a profile only where the kernel has AppArmor (specSetApparmorProfile)"},
	"no-such-program": {peer.CRIO134: "has runc look for the program when the container is created, so that there " +
		"never is one that has ended"},
	"port-of-host-address": {peer.CRIO134: "does not masquerade what comes from 127.0.0.1 to a host port"},
	"bind-mount-options": {
		peer.Containerd16: noMountOptions, peer.Containerd22: noMountOptions,
		peer.CRIO134: noMountOptions,
	},
	"pull-always": {
		peer.Containerd16: "has a registry for the image", peer.Containerd22: "has a registry for the " +
			"image", peer.CRIO134: "has a registry for the image",
	},
}

const noMountOptions = "is older than options of a container's mounts"

const noIDMaps = "announces user namespaces only with a runc that has idmapped mounts, unlike Debian's"

// onPeer runs tests of the agent with another runtime below it.
func onPeer(t *testing.T, p peer.Program) {
	t.Parallel()
	peers.Store(t.Name(), p)
	for name, test := range map[string]func(*testing.T){
		"FirstPod": TestFirstPod, "PodsReachEachOther": TestPodsReachEachOther, "StopLeavesPodsRunning": TestStopLeavesPodsRunning,
		"Probes": TestProbes, "Stats": TestStats, "Resize": TestResize, "Logs": peerLogs,
		"Fields": TestFields, "Lifecycle": TestLifecycle, "KillAgent": TestKillAgent,
	} {
		t.Run(name, test)
	}
}

// peerLogs has the agent rotate the log of a container, also when it was killed between moving it away and the runtime
// opening another.
func peerLogs(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--log-max-size=40Ki", "--log-max-files=50", "--log-monitor-interval=1s")
	n.apply("talks.yaml", pod("talks", `
  containers:
  - name: main
    image: `+image+`
    command: [sh, -c, 'i=0; while :; do if [ -e /more ]; then rm /more; end=$((i+1000)); while [ $i -lt $end ]; do echo line $i; i=$((i+1)); done; fi; sleep 0.1; done']`))
	p := n.waitReady("talks")
	log := filepath.Join(n.Dir, "logs", "default_"+p.Name+"_"+string(p.UID), "main", "0.log")
	said := 0
	more := func() {
		t.Helper()
		n.must("exec", "talks", "--", "touch", "/more")
		said += 1000
		n.eventually("a thousand lines more", func() error {
			if got := strings.Count(n.must("logs", "talks"), "\n"); got != said {
				return fmt.Errorf("%d of %d", got, said)
			}
			return nil
		})
	}
	rotated := func(want int) {
		t.Helper()
		n.eventually(fmt.Sprintf("%d rotated files", want), func() error {
			files, err := filepath.Glob(log + ".*")
			if err == nil && len(files) != want {
				err = fmt.Errorf("there are %q", files)
			}
			if err == nil {
				_, err = os.Stat(log) // the runtime has opened another
			}
			return err
		})
	}
	more()
	rotated(1)
	more()
	rotated(2)
	n.kill()
	// The newest of those that were moved away: it may have lines.
	files, err := filepath.Glob(log + ".*")
	if err != nil || len(files) != 2 {
		t.Fatalf("there are %q, %v", files, err)
	}
	if err := os.Rename(log, files[1]+"-000001"); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.eventually("the log to be there again", func() error { _, err := os.Stat(log); return err })
	more()
	rotated(4)
	for i, line := range strings.Split(strings.TrimSpace(n.must("logs", "talks")), "\n") {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	n.remove("talks.yaml")
	n.requireNoPods()
}

// TestKilledPeer kills the runtime below pods. The agent says so, waits for it and goes on; containers do not notice,
// and what has ended meanwhile is known as soon as the runtime is there again.
func TestKilledPeer(t *testing.T) {
	t.Parallel()
	peers.Store(t.Name(), peer.Containerd(t))
	n := startNode(t)
	n.apply("still.yaml", pod("still", `
  containers:
  - name: main
    image: `+image+`
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 1000 & wait; done']
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}`))
	n.apply("ends.yaml", pod("ends", `
  restartPolicy: Never
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'while ! test -e /end; do sleep 0.1; done; exit 7']}]`))
	still, ends := n.waitReady("still"), n.waitReady("ends")
	pid := n.processesIn(n.groupOf(ends, ends.Status.ContainerStatuses[0]))[0]
	n.peer.Kill()
	write(t, "/proc/"+pid+"/root/end", "")
	n.eventually("the process to end", func() error {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	n.apply("new.yaml", pod("new", sleeping))
	n.eventually("the agent to say why it waits", func() error {
		if b, err := os.ReadFile(n.Log); err != nil || !strings.Contains(string(b), "runtime cannot be reached") {
			return fmt.Errorf("its log: %s, %w", b, err)
		}
		return nil
	})
	n.peer.Start(t)
	n.waitReady("new")
	if s := terminated(n.waitPhase("ends", corev1.PodFailed), "main"); s == nil || s.ExitCode != 7 {
		t.Errorf("what has ended meanwhile: %+v", s)
	}
	n.requireSame(still, n.waitReady("still"))
	for _, name := range []string{"still", "ends", "new"} {
		n.remove(name + ".yaml")
	}
	n.requireNoPods()
}

// TestContainerd runs the agent on Debian's containerd.
func TestContainerd(t *testing.T) { onPeer(t, peer.Containerd(t)) }

// TestContainerd2 runs the agent on the containerd 2 that the environment names.
func TestContainerd2(t *testing.T) { onPeer(t, peer.Containerd2(t)) }

// TestCRIO runs the agent on the CRI-O that the environment names, as it is installed.
func TestCRIO(t *testing.T) { onPeer(t, peer.CRIO(t, false)) }

// TestPurgeOfPeer purges a node that has forgotten nothing of the runtime below it. While the runtime is dead, its pods
// keep everything.
func TestPurgeOfPeer(t *testing.T) {
	t.Parallel()
	peers.Store(t.Name(), peer.Containerd(t))
	n := startNode(t)
	n.apply("stays.yaml", pod("stays", `
  containers:
  - {name: main, image: `+image+`, command: [sh, -c, 'echo here > /data/file; exec sleep 1000'], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, emptyDir: {}}]`))
	p := n.waitReady("stays")
	pid := n.processesIn(n.groupOf(p, p.Status.ContainerStatuses[0]))[0]
	n.waitFile("/proc/"+pid+"/root/data/file", "here\n")
	n.kill()
	n.cmd = nil
	n.peer.Kill()
	out, err := exec.Command(bin("berth"), append([]string{"purge", "--yes"}, n.dirArgs()...)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), n.peer.Socket) || !strings.Contains(string(out), "--runtime=") {
		t.Errorf("purge without the runtime: %v, %s", err, out)
	}
	if b, err := os.ReadFile("/proc/" + pid + "/root/data/file"); err != nil || string(b) != "here\n" {
		t.Errorf("the volume of a container that runs has %q, %v", b, err)
	}
	n.peer.Start(t)
	// The end of the test purges again.
}

// TestStuckPeer kills the agent in the midst of a start that the runtime cannot take back: it keeps a container that
// it says has never run, whose process lives, and refuses to remove it. The pod goes all the same.
func TestStuckPeer(t *testing.T) { onStuckPeer(t, peer.Containerd(t)) }

// TestStuckPeer2 is that with the containerd 2 that the environment names.
func TestStuckPeer2(t *testing.T) { onStuckPeer(t, peer.Containerd2(t)) }

// TestStuckPeerCRIO is that with the CRI-O that the environment names.
func TestStuckPeerCRIO(t *testing.T) { onStuckPeer(t, peer.CRIO(t, false)) }

func onStuckPeer(t *testing.T, p peer.Program) {
	t.Parallel()
	peers.Store(t.Name(), p.Stuck())
	for name, end := range map[string]func(*Node){
		"Teardown": func(n *Node) {
			n.remove("stuck.yaml")
			n.start()
			n.requireNoPods()
		},
		"Purge": func(n *Node) { n.cmd = nil }, // as at the end of each test
		"Wanted": func(n *Node) {
			n.peer.Unstick()
			n.start()
			n.waitReady("stuck")
			n.remove("stuck.yaml")
			n.requireNoPods()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t)
			n.peer.Stick(t)
			defer n.peer.FailStart()
			n.apply("stuck.yaml", pod("stuck", sleeping))
			n.eventually("a start to hang", func() error {
				if !n.peer.Starting() {
					return errors.New("none does")
				}
				return nil
			})
			n.kill()
			n.peer.FailStart()
			n.eventually("the runtime to keep what it refuses to remove", func() error { return n.peer.Refused(t.Context()) })
			end(n)
		})
	}
}
