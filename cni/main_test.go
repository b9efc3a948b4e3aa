package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain runs the tests in a network and a mount namespace of their own: they make bridges and rules and set IP
// forwarding on, none of which is the machine's business. This program is also the plugins built in, when started by
// their names.
func TestMain(m *testing.M) {
	if IsPlugin(os.Args[0]) {
		PluginMain()
	}
	if dir := os.Getenv("BERTH_TEST_CHURN"); dir != "" {
		churn(dir)
	}
	if os.Geteuid() != 0 || os.Getenv("BERTH_TEST_NAMESPACE") != "" {
		code := m.Run()
		if code == 0 {
			if err := goleak.Find(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
		os.Exit(code)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "BERTH_TEST_NAMESPACE=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

const testBridge = "btst0"

var testCIDR = netip.MustParsePrefix("10.213.0.0/24")

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and bridges")
	}
}

func testConfig(t testing.TB, bridge string, cidr netip.Prefix) Config {
	dir := t.TempDir()
	return Config{
		StateDir: dir + "/ipam", NetNSDir: dir + "/netns", ConfDir: dir + "/net.d", BinDirs: []string{"/usr/lib/cni"},
		CacheDir: dir + "/cache", RecordDir: dir + "/records", BridgeName: bridge, PodCIDR: cidr,
	}
}

// open opens a network that is purged at the end of the test, and shown to have left nothing.
func open(t testing.TB, c Config) *Network {
	t.Helper()
	n := reopen(t, c)
	t.Cleanup(func() {
		if err := n.Purge(context.Background()); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, c)
	})
	return n
}

// reopen is a restart of the agent.
func reopen(t testing.TB, c Config) *Network {
	t.Helper()
	needRoot(t)
	n, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := netlink.LinkByName("lo"); err != nil || netlink.LinkSetUp(l) != nil {
		t.Fatal("cannot set lo up", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func checkNothingLeft(t testing.TB, c Config) {
	t.Helper()
	// The kernel takes namespaces down in its own time, and the other ends of their veth pairs with them.
	eventually(t, "veth pairs are left", func() bool { return len(veths(t, c.BridgeName)) == 0 })
	if _, err := netlink.LinkByName(c.BridgeName); err == nil {
		t.Errorf("bridge %s is left", c.BridgeName)
	}
	if ok, err := (table{bridge: c.BridgeName}).exists(&rtnlPool{protocol: unix.NETLINK_NETFILTER}); ok || err != nil {
		t.Errorf("table: got %v, %v, want that it is gone", ok, err)
	}
	if ok, err := tableExists(&rtnlPool{protocol: unix.NETLINK_NETFILTER}, filter{c.BridgeName}.table()); ok ||
		err != nil {
		t.Errorf("filter: got %v, %v, want that it is gone", ok, err)
	}
	for _, d := range []string{c.NetNSDir, c.StateDir} {
		if _, err := os.Lstat(d); err == nil {
			t.Errorf("%s is left", d)
		}
	}
	if m, err := os.ReadFile("/proc/self/mountinfo"); err != nil ||
		strings.Contains(string(m), filepath.Dir(c.NetNSDir)) {
		t.Errorf("mounts in %s are left (%v)", filepath.Dir(c.NetNSDir), err)
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Error(what)
}

// veths are the IDs of the veth pairs of a bridge.
func veths(t testing.TB, bridge string) (ids []string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Fatal(err)
	}
	for _, l := range links {
		if id, ok := strings.CutPrefix(l.Attrs().Alias, vethAlias(bridge, "")); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// addresses are the IDs that have one.
func addresses(t testing.TB, n *Network) map[string]netip.Addr {
	t.Helper()
	p, err := n.own.pool()
	if err == nil {
		err = p.load()
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]netip.Addr{}
	for who, a := range p.owners {
		id, _, _ := parseOwner(who)
		all[id] = a
	}
	return all
}

// hostPorts counts the elements of both maps.
func hostPorts(t testing.TB, n *Network) (count int) {
	t.Helper()
	tab := table{bridge: n.own.conf.Bridge}
	for _, m := range []*nftables.Set{tab.portMap(), tab.addrPortMap()} {
		all, err := setElements(n.own.builtin.nft, m, nil)
		must(t, err)
		count += len(all)
	}
	return count
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testPod is a sandbox that is set up.
type testPod struct {
	Pod
	Result
	ns *os.File
}

func (p *testPod) ip() string { return p.IPs[0].String() }

func setup(t testing.TB, n *Network, id string, ports ...PortMapping) *testPod {
	t.Helper()
	path, err := n.NewNamespace(id)
	must(t, err)
	p := &testPod{Pod: Pod{ID: id, Name: id, Namespace: "default", UID: "u-" + id, NetNS: path, Ports: ports}}
	p.Result, err = n.Setup(t.Context(), p.Pod)
	must(t, err)
	p.ns, err = os.Open(path)
	must(t, err)
	t.Cleanup(func() { p.ns.Close() })
	return p
}

func teardown(t testing.TB, n *Network, p Pod) {
	t.Helper()
	must(t, n.Teardown(context.Background(), p))
	must(t, n.RemoveNamespace(p.ID))
}

// in runs f in the network of a pod, or of the node for nil.
func in(t testing.TB, ns *os.File, f func() error) {
	t.Helper()
	home, err := os.Open("/proc/self/ns/net")
	must(t, err)
	defer home.Close()
	if ns == nil {
		ns = home
	}
	must(t, inNetNS(ns, f))
}

// serve answers each TCP connection and each UDP packet to a port with name and the address it came from.
func serve(t testing.TB, ns *os.File, name string, port int) (stop func()) {
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	in(t, ns, func() (err error) {
		if l, err = net.Listen("tcp4", fmt.Sprint("0.0.0.0:", port)); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp4", fmt.Sprint("0.0.0.0:", port))
		return err
	})
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s %s", name, host(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			n, from, err := u.ReadFrom(make([]byte, 10))
			if err != nil {
				return
			}
			if n > 0 {
				u.WriteTo([]byte(name+" "+host(from)), from)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		l.Close()
		u.Close()
		<-done
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func host(a net.Addr) string {
	h, _, _ := net.SplitHostPort(a.String())
	return h
}

// ask connects and returns who answered, and as whom they saw us.
func ask(t testing.TB, ns *os.File, network, addr string) (who, saw string, err error) {
	t.Helper()
	var c net.Conn
	var dialErr error
	in(t, ns, func() error {
		c, dialErr = net.DialTimeout(network, addr, 2*time.Second)
		return nil
	})
	if dialErr != nil {
		return "", "", dialErr
	}
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(2*time.Second)))
	if network == "udp4" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", "", err
		}
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	who, saw, _ = strings.Cut(string(buf[:n]), " ")
	return who, saw, err
}

// askUntil is ask, again where no answer comes: a new port of a bridge carries nothing until the kernel has noticed
// that it has a carrier, and who answers has other work.
func askUntil(t testing.TB, ns *os.File, network, addr string) (who, saw string, err error) {
	t.Helper()
	for range 15 {
		who, saw, err = ask(t, ns, network, addr)
		var late net.Error
		if !errors.As(err, &late) || !late.Timeout() {
			break
		}
	}
	return who, saw, err
}

func wantAnswer(t testing.TB, ns *os.File, network, addr, who, saw string) {
	t.Helper()
	gotWho, gotSaw, err := askUntil(t, ns, network, addr)
	if err != nil || gotWho != who || gotSaw != saw {
		t.Errorf("ask %s %s: got %q seeing %q, %v; want %q seeing %q", network, addr, gotWho, gotSaw, err, who, saw)
	}
}

// outside is a host beyond the node: a namespace with 198.18.0.2, by a veth pair whose end on the node has 198.18.0.1.
// It knows no way to the pods.
func outside(t testing.TB) *os.File {
	t.Helper()
	needRoot(t)
	path := filepath.Join(t.TempDir(), "outside")
	home, err := os.Open("/proc/self/ns/net")
	must(t, err)
	defer home.Close()
	pin := &pins{dir: filepath.Dir(path), home: home}
	_, err = pin.create("outside")
	must(t, err)
	ns, err := os.Open(path)
	must(t, err)
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "bnode0", Flags: net.FlagUp, TxQLen: -1},
		PeerName:  "bout0", PeerNamespace: netlink.NsFd(int(ns.Fd())),
	}
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() {
		ns.Close()
		if err := errors.Join(netlink.LinkDel(pair), pin.remove("outside")); err != nil {
			t.Error(err)
		}
	})
	configure := func(name, addr string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
	}
	must(t, configure("bnode0", "198.18.0.1/24"))
	in(t, ns, func() error { return configure("bout0", "198.18.0.2/24") })
	return ns
}

func skelArgs(p Pod) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: p.ID, Netns: p.NetNS, IfName: podInterface}
}
