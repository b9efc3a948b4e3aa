package conformance

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	registry "github.com/google/go-containerregistry/pkg/v1/remote"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/cri"
	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/remote"
)

// TestMain runs more cases at a time than the machine has CPUs, since they wait much of the time. The flag -parallel
// says otherwise.
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

const testImage = "berth.test/busybox:1"

func TestEmbedded(t *testing.T) {
	Run(t, func(t *testing.T) *Target {
		n := newNode(t)
		s, err := cri.New(context.Background(), cri.Config{
			RootDir: n.dir + "/root", RunDir: n.dir + "/run", LogDir: n.dir + "/logs", CgroupRoot: n.cgroup, Helper: n.bin +
				"/berth-helper",
			BridgeName: n.bridge, PodCIDR: n.cidr, Images: cri.ImagesConfig{Dir: n.dir +
				"/images"}, LogMaxSize: 10 << 20, LogMaxFiles: 3, Log: n.logger(t),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			n.purge(t)
		})
		return n.target(t, struct {
			*cri.Server
			*cri.ImageServer
		}{s, s.ImageServer()})
	})
}

func TestServed(t *testing.T) {
	Run(t, func(t *testing.T) *Target { return newNode(t).served(t) })
}

// TestServedByAgent is the socket beside the agent's own use of the runtime.
func TestServedByAgent(t *testing.T) {
	Run(t, func(t *testing.T) *Target {
		n := newNode(t)
		must(t)(os.Mkdir(n.dir+"/manifests", 0o755))
		return n.serve(t, "agent", "--cri-socket="+n.dir+"/cri.sock", "--manifest-dir="+n.dir+"/manifests", "--nri=false")
	})
}

// TestHandlers makes every container by another OCI runtime.
func TestHandlers(t *testing.T) {
	for _, handler := range []string{"crun", "runc"} {
		t.Run(handler, func(t *testing.T) {
			if handler == "runc" && os.Getenv("BERTH_TEST_LONG") == "" {
				t.Skip("the embedded runtime's own is runc's libcontainer: make test-long")
			}
			Run(t, func(t *testing.T) *Target {
				target := newNode(t).served(t)
				target.Handler = handler
				return target
			})
		})
	}
}

func (n *node) served(t *testing.T) *Target {
	return n.serve(t, "runtime", "--listen=unix://"+n.dir+"/cri.sock")
}

// serve is a command of berth that serves the CRI on the node's socket.
func (n *node) serve(t *testing.T, command string, args ...string) *Target {
	t.Helper()
	cmd := n.start(t, n.bin+"/berth",
		append(append([]string{command, "--image-dir=" + n.dir + "/images", "--cni-conf-dir="}, args...), n.args()...)...)
	t.Cleanup(func() {
		end(t, cmd)
		n.purge(t)
	})
	return n.target(t, n.dial(t, n.dir+"/cri.sock"))
}

// node is where a runtime of a test lives, apart from everything else on the machine.
type node struct {
	dir, bin, cgroup, bridge string
	cidr                     netip.Prefix
	log                      *os.File
}

var nodes atomic.Int32

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces, cgroups and mounts are made for real")
	}
	dir, err := os.MkdirTemp("/var/tmp", "berth-conf-")
	if err != nil {
		t.Fatal(err)
	}
	bin := os.Getenv("BERTH_BIN")
	if bin == "" {
		bin = "../../bin"
	}
	if bin, err = filepath.Abs(bin); err != nil {
		t.Fatal(err)
	}
	i := nodes.Add(1)
	n := &node{
		dir: dir, bin: bin, cgroup: fmt.Sprintf("/berth-conf-%d-%d", os.Getpid(), i), bridge: fmt.Sprintf("bc%d",
			(os.Getpid()*8+int(i))%1_000_000_000),
		cidr: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 196, byte(os.Getpid()), 0}), 24),
	}
	if n.log, err = os.Create(dir + "/log"); err != nil {
		t.Fatal(err)
	}
	must(t)(os.Mkdir(dir+"/images", 0o755))
	b, err := os.ReadFile(archive(t))
	must(t)(err)
	must(t)(os.WriteFile(dir+"/images/busybox.tar", b, 0o644))
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(n.log.Name())
			t.Logf("log of the runtime:\n%s", b[max(0, len(b)-8000):])
		}
		n.log.Close()
		n.removeGroups(t)
		n.checkClean(t)
		if !t.Failed() {
			must(t)(os.RemoveAll(dir))
		}
	})
	return n
}

func archive(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{os.Getenv("BERTH_BIN"), "../../bin"} {
		if p := filepath.Join(dir, "test/busybox.tar"); dir != "" {
			if _, err := os.Stat(p); err == nil {
				return p
			}
		}
	}
	t.Fatal("there is no test image (make build-test makes it)")
	return ""
}

func (n *node) logger(*testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(n.log, nil)) }

func (n *node) args() []string {
	return []string{
		"--root-dir=" + n.dir + "/root", "--run-dir=" + n.dir + "/run", "--log-dir=" + n.dir + "/logs",
		"--cgroup-root=" + n.cgroup, "--bridge-name=" + n.bridge, "--pod-cidr=" + n.cidr.String(),
	}
}

// start starts a runtime in a process of its own.
func (n *node) start(t *testing.T, prog string, args ...string) *osexec.Cmd {
	t.Helper()
	cmd := osexec.Command(prog, args...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t)(cmd.Start())
	return cmd
}

func end(t *testing.T, cmd *osexec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s ended with %v", filepath.Base(cmd.Path), err)
	}
}

func (n *node) purge(t *testing.T) {
	out, err := osexec.Command(n.bin+"/berth", append([]string{"purge", "--yes"}, n.args()...)...).CombinedOutput()
	if err != nil {
		t.Errorf("berth purge: %v\n%s", err, out)
	}
}

// dial returns the runtime at a socket once it answers.
func (n *node) dial(t *testing.T, socket string) *remote.Runtime {
	t.Helper()
	r, err := remote.Dial(remote.Config{Endpoint: "unix://" + socket, Relist: 50 * time.Millisecond, Log: n.logger(t)})
	must(t)(err)
	t.Cleanup(func() { r.Close() })
	ctx, cancel := contextOf(t)
	defer cancel()
	if _, err := r.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		t.Fatalf("the runtime does not answer: %v", err)
	}
	return r
}

func (n *node) target(t *testing.T, r pod.Runtime) *Target {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // images are imported beside all else
		st, err := r.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: testImage}})
		must(t)(err)
		if st.GetImage() != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the image %s is not imported within %s", testImage, patience)
		}
	}
	return &Target{Runtime: r, CgroupRoot: n.cgroup, LogDir: n.dir + "/logs", Image: testImage, Registry: startRegistry(t)}
}

// startRegistry starts Debian's registry with the test image in it, under a name for each case that removes it.
func startRegistry(t *testing.T) string {
	t.Helper()
	address, installed := imagetest.StartDocker(t)
	if !installed {
		t.Fatal("docker-registry is not installed (make deps installs it)")
	}
	tree := t.TempDir()
	if out, err := osexec.Command("tar", "-C", tree, "-xf", archive(t)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path, err := layout.FromPath(tree)
	must(t)(err)
	index, err := path.ImageIndex()
	must(t)(err)
	manifest, err := index.IndexManifest()
	must(t)(err)
	img, err := index.Image(manifest.Manifests[0].Digest)
	must(t)(err)
	push := func(repo string, change func(*v1.Config)) {
		f, err := img.ConfigFile()
		must(t)(err)
		c := *f.Config.DeepCopy()
		c.Labels = map[string]string{"repository": repo} // so that each is an image of its own
		if change != nil {
			change(&c)
		}
		changed, err := mutate.Config(img, c)
		must(t)(err)
		r, err := name.ParseReference(address+"/"+repo+":1", name.Insecure)
		must(t)(err)
		must(t)(registry.Write(r, changed))
	}
	push("busybox", nil)
	push("images", nil)
	push("bydigest", nil)
	push("user", func(c *v1.Config) { c.User = "app" })
	return address
}

// removeGroups removes the pods' groups, which are those of who has asked for the pods. Those of containers must be
// gone. CRI-O leaves those of their monitors, in which no process may be.
func (n *node) removeGroups(t *testing.T) {
	for _, g := range n.groups() {
		_ = filepath.WalkDir(g, func(path string, d os.DirEntry, err error) error {
			switch {
			case err != nil || !d.IsDir() || len(d.Name()) < 64:
			case strings.HasPrefix(d.Name(), "crio-conmon-"):
				_ = os.Remove(path) // that of the pod cannot be removed otherwise
			default:
				t.Errorf("left behind: cgroup %s", path)
			}
			return nil
		})
		pods, _ := filepath.Glob(g + "/*")
		for _, p := range append(pods, g) {
			if st, err := os.Stat(p); err == nil && st.IsDir() {
				if err := os.Remove(p); err != nil {
					t.Errorf("remove cgroup: %v", err)
				}
			}
		}
	}
}

// groups are the node's cgroup in every hierarchy.
func (n *node) groups() []string {
	found, _ := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup)
	if _, err := os.Stat("/sys/fs/cgroup" + n.cgroup); err == nil {
		found = append(found, "/sys/fs/cgroup"+n.cgroup)
	}
	return found
}

// checkClean asks the kernel whether anything of the node is left.
func (n *node) checkClean(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left = n.leftovers(); len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

func (n *node) leftovers() (left []string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], n.dir+"/") {
			left = append(left, "mount "+f[4])
		}
	}
	for _, g := range n.groups() {
		left = append(left, "cgroup "+g)
	}
	links, _ := filepath.Glob("/sys/class/net/*")
	for _, l := range links {
		master, _ := os.Readlink(l + "/master")
		if filepath.Base(l) == n.bridge || filepath.Base(master) == n.bridge {
			left = append(left, "link "+filepath.Base(l))
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		group, _ := os.ReadFile(p + "/cgroup")
		cmd, _ := os.ReadFile(p + "/cmdline")
		if strings.Contains(string(group), ":"+n.cgroup+"/") || strings.Contains(string(cmd), n.dir) {
			left = append(left, "process "+filepath.Base(p)+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return left
}
