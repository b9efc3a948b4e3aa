package system

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-node/berth/test/peer"
)

// peers has the runtime of each test that is run on another than the embedded one, by the test's name. What is run below such a
// test has nodes with that runtime.
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
		Dir: n.Dir + "/peer", Bridge: n.Bridge, CIDR: n.CIDR, Images: filepath.Dir(testImages(n.t)[0]), Log: n.Dir + "/peer.log",
	})
	n.peer.Start(n.t)
}

// onPeer runs tests of the agent with another runtime below it.
func onPeer(t *testing.T, p peer.Program) {
	t.Parallel()
	peers.Store(t.Name(), p)
	for name, test := range map[string]func(*testing.T){
		"FirstPod": TestFirstPod, "PodsReachEachOther": TestPodsReachEachOther, "StopLeavesPodsRunning": TestStopLeavesPodsRunning,
		"Fields": TestFields, "Lifecycle": TestLifecycle, "Probes": TestProbes, "Stats": TestStats, "Resize": TestResize,
		"KillAgent": TestKillAgent, "Inspect": TestInspect,
	} {
		t.Run(name, test)
	}
}

// TestContainerd runs the agent on Debian's containerd.
func TestContainerd(t *testing.T) { onPeer(t, peer.Containerd(t)) }

// TestContainerd2 runs the agent on the containerd 2 that the environment names.
func TestContainerd2(t *testing.T) { onPeer(t, peer.Containerd2(t)) }

// TestCRIO runs the agent on the CRI-O that the environment names, as it is installed.
func TestCRIO(t *testing.T) { onPeer(t, peer.CRIO(t, false)) }
