// Package system drives the built binaries as a user would and asks the kernel whether what they say is true.
//
// Every test has a node of its own, apart from every other: directories, cgroup root, bridge and addresses. The
// binaries are taken from $BERTH_BIN (the repository's bin by default), which `make test` builds first.
package system

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/test/peer"
)

// Node is one berth agent on directories of its own.
type Node struct {
	t     *testing.T
	Dir   string
	Log   string
	args  []string
	under []string // the agent is started by this command
	env   []string // of the agent, beside that of the test

	driver string // of cgroups; "" is the agent's default

	CgroupRoot, Bridge, CIDR string
	peer                     *peer.Runtime // runs the pods instead of the embedded runtime, if not nil

	cmd     *exec.Cmd
	exited  chan struct{}
	service string // the agent is a service of systemd, and cmd nil
	client  *http.Client
	disks   []string // mounted for the node
	others  []int    // processes that the test has started beside the agent
}

// TestMain runs more tests at a time than the machine has CPUs, since most of them wait most of the time: for a grace
// period, a back-off, the kernel. The flag -parallel says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.NumCPU())); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

var nodes atomic.Int32

// newNode makes the directories of a node and imports the test images. At the end of the test everything is purged and
// the kernel is asked whether anything is left.
func newNode(t *testing.T, args ...string) *Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces, cgroups and mounts are made for real")
	}
	dir, err := os.MkdirTemp("/var/tmp", "berth-sys-")
	if err != nil {
		t.Fatal(err)
	}
	i := nodes.Add(1)
	id := fmt.Sprintf("%d-%d", os.Getpid(), i)
	n := &Node{
		t: t, Dir: dir, args: args, Log: filepath.Join(dir, "agent.log"),
		CgroupRoot: "/berth-sys-" + id,
		Bridge:     fmt.Sprintf("bs%d", (os.Getpid()*64+int(i))%1_000_000_000),
		CIDR:       fmt.Sprintf("10.%d.%d.0/24", 100+os.Getpid()%96, i%250), // two test runs of a machine seldom meet
	}
	n.useDriver(os.Getenv("BERTH_CGROUP_DRIVER"))
	for _, d := range []string{"manifests", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "run/berth.sock"))
		},
	}}
	t.Cleanup(n.checkClean)
	if p, ok := peerOf(t); ok {
		n.usePeer(p)
	}
	for _, img := range testImages(t) {
		if n.peer != nil {
			n.peer.Import(t, img)
			continue
		}
		b, err := os.ReadFile(img)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "images", filepath.Base(img)), string(b))
	}
	t.Cleanup(n.destroy)
	return n
}

// startNode makes a node and starts its agent.
func startNode(t *testing.T, args ...string) *Node {
	t.Helper()
	n := newNode(t, args...)
	n.start()
	return n
}

func bin(name string) string {
	dir := os.Getenv("BERTH_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	p, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		panic(err)
	}
	return p
}

func (n *Node) dirArgs() []string {
	args := []string{
		"--root-dir=" + n.Dir + "/root", "--run-dir=" + n.Dir + "/run", "--log-dir=" + n.Dir + "/logs",
		"--cgroup-root=" + n.CgroupRoot, "--bridge-name=" + n.Bridge, "--pod-cidr=" + n.CIDR,
	}
	if n.driver != "" {
		args = append(args, "--cgroup-driver="+n.driver)
	}
	return args
}

// agentArgs are what the agent is started with.
func (n *Node) agentArgs() []string {
	args := append([]string{
		"agent", "--manifest-dir=" + n.Dir + "/manifests", "--node-name=node", "--backoff-initial=100ms", "--backoff-max=1s",
		// The disk may be full of what is not ours.
		"--image-gc-high-threshold=100", "--eviction-hard=memory.available<100Mi",
	}, n.dirArgs()...)
	if n.peer != nil {
		args = append(args, "--runtime=unix://"+n.peer.Socket)
	} else {
		args = append(args, "--image-dir="+n.Dir+"/images", "--cni-conf-dir="+n.Dir+"/cni", "--cri-socket=")
	}
	return append(args, n.args...)
}

// launch starts the agent without waiting for it.
func (n *Node) launch() {
	n.t.Helper()
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	words := append(append(slices.Clone(n.under), bin("berth")), n.agentArgs()...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), n.env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	n.cmd, n.exited = cmd, exited
}

// start starts the agent and waits until it answers.
func (n *Node) start() {
	n.t.Helper()
	n.launch()
	n.waitUp()
}

func (n *Node) waitUp() {
	n.t.Helper()
	n.waitOK("the agent to answer", "/healthz")
}

// waitOK waits for what the agent answers to a path once it is so.
func (n *Node) waitOK(what, path string) {
	n.t.Helper()
	n.eventually(what, func() error {
		select {
		case <-n.exited:
			n.t.Fatalf("the agent ended: %s\n%s", n.cmd.ProcessState, n.logTail())
		default:
		}
		resp, err := n.client.Get("http://node" + path)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// kill stops the agent with kill -9.
func (n *Node) kill() {
	n.cmd.Process.Kill()
	<-n.exited
}

// stop stops the agent as systemd would, and requires that it went well.
func (n *Node) stop() {
	n.t.Helper()
	n.cmd.Process.Signal(syscall.SIGTERM)
	<-n.exited
	if !n.cmd.ProcessState.Success() {
		n.t.Errorf("the agent ended after SIGTERM with %s\n%s", n.cmd.ProcessState, n.logTail())
	}
}

func (n *Node) destroy() {
	if n.cmd != nil {
		n.kill()
	}
	if n.t.Failed() {
		n.t.Logf("the agent's log:\n%s", n.logTail())
	}
	args := append([]string{"purge", "--yes"}, n.dirArgs()...)
	if out, err := exec.Command(bin("berth"), args...).CombinedOutput(); err != nil {
		n.t.Errorf("berth purge: %v\n%s", err, out)
	}
	if n.peer != nil {
		n.peer.EndLost(n.t) // as long as the peer can be asked which it knows
	}
	for _, dir := range n.disks {
		if err := unix.Unmount(dir, 0); err != nil {
			n.t.Errorf("unmount %s: %v", dir, err)
		}
	}
}

// disk gives a directory of the node a file system of its own, in memory, until the node has been purged.
func (n *Node) disk(dir, size string) string {
	n.t.Helper()
	path := filepath.Join(n.Dir, dir)
	if err := os.MkdirAll(path, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Mount("disk", path, "tmpfs", 0, "size="+size); err != nil {
		n.t.Fatal(err)
	}
	n.disks = append(n.disks, path)
	return path
}

// share has what is mounted in a directory of the node be seen by whoever has a copy of it, and the other way round, as
// of "/" where the init is systemd, until the node has been purged.
func (n *Node) share(dir string) {
	n.t.Helper()
	path := filepath.Join(n.Dir, dir)
	if err := os.MkdirAll(path, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		n.t.Fatal(err)
	}
	n.disks = append(n.disks, path)
	if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
		n.t.Fatal(err)
	}
}

// checkClean asks the kernel whether anything of the node is left, which has been purged.
func (n *Node) checkClean() {
	n.eventually("nothing to be left on the machine", func() error {
		if left := n.leftovers(); len(left) > 0 {
			return fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
	if len(n.mounts()) == 0 {
		os.RemoveAll(n.Dir)
	}
}

func (n *Node) logTail() string {
	b, _ := os.ReadFile(n.Log)
	if len(b) > 12000 {
		b = b[len(b)-12000:]
	}
	return string(b)
}

// berth runs the CLI against this node; it returns what was printed and the exit code.
func (n *Node) berth(args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	return n.berthIn(nil, args...)
}

func (n *Node) berthIn(stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	var o, e bytes.Buffer
	cmd := exec.Command(bin("berth"), append([]string{"--run-dir=" + n.Dir + "/run"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// must runs the CLI and requires exit code 0.
func (n *Node) must(args ...string) string {
	n.t.Helper()
	o, e, code := n.berth(args...)
	if code != 0 {
		n.t.Fatalf("berth %s: exit code %d\n%s%s", strings.Join(args, " "), code, o, e)
	}
	return o
}

// sh runs a shell command in a pod and requires exit code 0.
func (n *Node) sh(pod, command string) string {
	n.t.Helper()
	return n.must("exec", pod, "--", "sh", "-c", command)
}

// apply drops a manifest into the directory the way careful tools do: a rename.
func (n *Node) apply(file, manifest string) {
	n.t.Helper()
	path := filepath.Join(n.Dir, "manifests", file)
	tmp := filepath.Join(n.Dir, file+".new")
	if err := os.WriteFile(tmp, []byte(manifest), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		n.t.Fatal(err)
	}
}

func (n *Node) remove(file string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.Dir, "manifests", file)); err != nil {
		n.t.Fatal(err)
	}
}

// pods is the agent's list of pods.
func (n *Node) pods() []corev1.Pod {
	n.t.Helper()
	resp, err := n.client.Get("http://node/pods")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list corev1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		n.t.Fatal(err)
	}
	return list.Items
}

// pod returns the pod of that name in namespace default, nil when there is none.
func (n *Node) pod(name string) *corev1.Pod {
	n.t.Helper()
	for _, p := range n.pods() {
		if p.Name == name+"-node" || p.Name == name {
			return &p
		}
	}
	return nil
}

// wait follows the agent's watch until ok says so of the pod (which is nil while there is none) and returns it.
func (n *Node) wait(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	n.t.Helper()
	// also for cleaning up, when the test's context has ended
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/pods?watch=1", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if p := n.pod(name); ok(p) {
		return p
	}
	resp, err := n.client.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	if p := n.pod(name); ok(p) {
		return p
	}
	dec := json.NewDecoder(bufio.NewReader(resp.Body))
	for {
		var ev metav1.WatchEvent
		if err := dec.Decode(&ev); err != nil {
			b, _ := json.MarshalIndent(n.pod(name), "", " ")
			n.t.Fatalf("waited for pod %s to be %s: %v\nit is %s", name, what, err, b)
		}
		var p corev1.Pod
		if err := json.Unmarshal(ev.Object.Raw, &p); err != nil {
			n.t.Fatal(err)
		}
		if p.Name != name+"-node" && p.Name != name {
			continue
		}
		if ev.Type == "DELETED" {
			if q := n.pod(name); ok(q) {
				return q
			}
			continue
		}
		if ok(&p) {
			return &p
		}
	}
}

func (n *Node) waitReady(name string) *corev1.Pod {
	n.t.Helper()
	return n.wait(name, "ready", isReady)
}

func (n *Node) waitPhase(name string, phase corev1.PodPhase) *corev1.Pod {
	n.t.Helper()
	return n.wait(name, string(phase), func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == phase })
}

func (n *Node) waitGone(name string) {
	n.t.Helper()
	n.wait(name, "gone", func(p *corev1.Pod) bool { return p == nil })
}

func isReady(p *corev1.Pod) bool {
	if p == nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
