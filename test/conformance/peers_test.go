package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/test/peer"
)

// what containerd 1.6 cannot pass, and why.
var containerd16 = map[string]string{
	"RuntimeConfig":        "containerd 1.6 is older than this call",
	"TargetNamespace":      "containerd 1.6 looks for the target in another way than by the container's own sandbox",
	"StrictGroups":         "containerd 1.6 is older than the policy of supplemental groups and the user in the status",
	"RecursiveReadOnly":    "containerd 1.6 is older than recursive read-only mounts",
	"StopSignal":           "containerd 1.6 takes the stop signal from the image alone",
	"AttachWebSocket":      "containerd 1.6 speaks version 4 of the protocol, which has no word for the end of the input",
	"PortForwardWebSocket": "containerd 1.6 does not know SPDY in a WebSocket",
	"ListOrder":            "containerd 1.6 lists in no order",
	"ResourcesInStatus":    "containerd 1.6 does not tell resources in the status",

	"ExecSyncTimeout": "containerd 1.6 kills the command alone and then waits for the output of what it has left " +
		"behind, for ever",
	"ExecSyncLeftBehind": "containerd 1.6 waits for the output of what a command has left behind, for ever",

	"ExitCodes/Times": "containerd 1.6 takes the time of a start when it has returned, by when the container " +
		"may have ended",
	"SandboxLife/StopRemoved":   "containerd 1.6 does not find it",
	"UnknownIDs/StopPodSandbox": "containerd 1.6 does not find it",
	"UnknownIDs/StopContainer":  "containerd 1.6 does not find it",
	"UnknownIDs/NotFound":       "containerd 1.6 gives some errors no code",
	"ManyAtOnce/StopsMeet":      "containerd 1.6 finds the network gone that another stop has taken down",
	"Images/Filter":             "containerd 1.6 lists all images whatever the filter",
	"ImageThatIsNot/Filter":     "containerd 1.6 lists all images whatever the filter",
	"PortForwardSPDY/IPv6":      "containerd 1.6 does not reach ::1 alone",
	"ExecWebSocket/EndOfInput":  "containerd 1.6 speaks version 4 of the protocol, which has no word for it",
	"Privileged/Sysfs":          "containerd 1.6 makes the sysfs of a pod read-only for all its containers",
}

// what containerd 2 cannot pass, and why.
var containerd2 = map[string]string{
	"ExitCodes/Times": "containerd 2.2 takes the time of a start when it has returned, by when the container may have " +
		"ended",

	"StopSignal":         "containerd 2.2 takes the stop signal from the image alone",
	"ListOrder":          "containerd 2.2 lists in no order",
	"ExecSyncTimeout":    "containerd 2.2 kills the command alone",
	"ExecSyncLeftBehind": "containerd 2.2 waits for the output of what a command has left behind",

	"SandboxLife/CreateStopped": "containerd 2.2 makes a container in a sandbox that has been stopped",
	"ManyAtOnce/StopsMeet":      "containerd 2.2 finds the network gone that another stop has taken down",
	"Images/Filter":             "containerd 2.2 lists all images whatever the filter",
	"ImageThatIsNot/Filter":     "containerd 2.2 lists all images whatever the filter",
	"PortForwardSPDY/IPv6":      "containerd 2.2 does not reach ::1 alone",
	"PortForwardWebSocket":      "containerd 2.2 does not know SPDY in a WebSocket",
	"AttachWebSocket": "containerd 2.2 speaks version 4 of the protocol, which has no word for the end of the " +
		"input",
	"ExecWebSocket/EndOfInput": "containerd 2.2 speaks version 4 of the protocol, which has no word for it",
}

// what CRI-O cannot pass, and why.
var crio = map[string]string{
	"MountPropagation": "runc gives an exec in a privileged container all capabilities, which the machine may " +
		"withhold",
	"Privileged": "runc gives an exec in a privileged container all capabilities, which the machine may " +
		"withhold",
	"ExecTerminalSPDY":      "CRI-O loses what a command on a terminal writes last",
	"ExecTerminalWebSocket": "CRI-O loses what a command on a terminal writes last",
	"HostPorts/Loopback":    "CRI-O's host ports do not answer at the loopback address",
	"PodStats":              "CRI-O tells no CPU and memory of a pod whose sandbox has no process",
	"HostNamespaces":        "CRI-O gives a pod on the node's network a UTS namespace of its own",
	"Users":                 "CRI-O gives groups without a name one",
	"StopSignal":            "CRI-O takes the stop signal from the image alone",
	"MissingCommand":        "CRI-O's create fails where the start should",
	"ExecSync":              "CRI-O cuts the output off, and runs commands in a container that was not started",
	"ExecSyncTimeout":       "CRI-O answers with exit code -1",
	"ExecSPDY":              "CRI-O tells a command that is not there by exit code 255 alone",
	"ExecWebSocket":         "CRI-O tells a command that is not there by exit code 255 alone",
	"UnknownIDs":            "CRI-O gives most errors no code, and looks a container up when its stream has begun",
	"NamesAreTaken":         "CRI-O removes the sandbox that has the name",
	"PortForwardSPDY/IPv6":  "CRI-O does not reach ::1 alone",
	"Sysctls/WholeMachine":  "CRI-O leaves it to the agent which sysctls are taken",
	"Events/SandboxDeleted": "CRI-O does not tell the removal of a sandbox",
	"StreamsOfWhatHasEnded": "CRI-O looks a container up when its stream has begun, and names no state",
	"PortForwardWebSocket":  "CRI-O does not know SPDY in a WebSocket",
	"AttachWebSocket":       "CRI-O does not tell a command the end of its input in a WebSocket",
	"ExitCodes/Times":       "CRI-O takes the time of a start when it has returned, by when the container may have ended",
}

// TestContainerd runs Debian's containerd on directories, a bridge and a cgroup of its own. It takes as long as all
// else here: what it holds, the agent's tests with it hold in part.
func TestContainerd(t *testing.T) {
	if os.Getenv("BERTH_TEST_LONG") == "" {
		t.Skip("the suite over a peer is not one of every run: make test-long")
	}
	runPeer(t, peer.Containerd(t), containerd16)
}

// TestContainerd2 runs the containerd 2 that the environment names.
func TestContainerd2(t *testing.T) { runPeer(t, peer.Containerd2(t), containerd2) }

// TestCRIO runs the CRI-O that the environment names, with its stream of events and as it is installed, without.
func TestCRIO(t *testing.T) {
	for name, events := range map[string]bool{"Events": true, "NoEvents": false} {
		t.Run(name, func(t *testing.T) { runPeer(t, peer.CRIO(t, events), crio) })
	}
}

func runPeer(t *testing.T, p peer.Program, lacks map[string]string) {
	Run(t, func(t *testing.T) *Target {
		n := newNode(t)
		r := peer.New(t, p, peer.Place{
			Dir: n.dir + "/" + p.Name, Bridge: n.bridge, CIDR: n.cidr.String(), Images: filepath.Dir(archive(t)), Log: n.log.Name(),
		})
		r.Start(t)
		r.Import(t, archive(t))
		target := n.target(t, n.dial(t, r.Socket))
		target.Lacks = lacks
		return target
	})
}
