package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// Names of the plugins built in.
const (
	pluginBridge   = "berth-bridge"
	pluginIPAM     = "berth-ipam"
	pluginPortMap  = "berth-portmap"
	pluginLoopback = "berth-loopback"
)

// versions of the CNI specification that the plugins built in speak: those that pass a result through a chain.
func versions() version.PluginInfo { return version.VersionsStartingFrom("0.4.0") }

// plugin is one plugin built in. A result is returned, not printed, so that it can be called in this process.
type plugin struct {
	add    func(ctx context.Context, a *skel.CmdArgs) (types.Result, error)
	del    func(ctx context.Context, a *skel.CmdArgs) error
	check  func(ctx context.Context, a *skel.CmdArgs) error
	gc     func(ctx context.Context, a *skel.CmdArgs) error
	status func(ctx context.Context, a *skel.CmdArgs) error
}

// builtin is what the plugins built in keep open between two calls.
type builtin struct {
	log          *slog.Logger
	boot         string
	home         *os.File // the network namespace of the process
	ipv6         bool     // the kernel has it
	link         rtnlPool
	nft          rtnlPool
	filterSocket nftSocket
	// slots bounds how many pods are worked on in the kernel at once. More than there are processors only wait for the
	// kernel's own locks there, each of them on a thread that the Go runtime never gives back.
	slots chan struct{}
	// executed: one call a process, by a runtime that may not drop the namespace afterwards. So a veth pair is deleted
	// and waited for.
	executed bool
	// pluginTimeout is how long an executed plugin may take.
	pluginTimeout time.Duration

	mu        sync.Mutex
	pools     map[string]*pool            // by directory
	bridges   map[string]*bridge          // by name
	tables    map[table]bool              // made by this process, or (false) not possible
	filters   map[string]bool             // of bridges, by name: as tables
	open      map[string]bool             // sandboxes that are not filtered, by ID
	guests    func(bridge string) []guest // who is to be in a filter that is made anew
	filtering sync.Mutex                  // held while a filter is made
	later     sync.WaitGroup              // veths that are deleted in the background
}

func openBuiltin(log *slog.Logger) (*builtin, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot ID: %w", err)
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	_, noIPv6 := os.Stat("/proc/sys/net/ipv6")
	return &builtin{
		pluginTimeout: pluginTimeout,
		log:           log, boot: strings.TrimSpace(string(boot)), home: home, ipv6: noIPv6 == nil,
		slots: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))),
		link:  rtnlPool{protocol: unix.NETLINK_ROUTE}, nft: rtnlPool{protocol: unix.NETLINK_NETFILTER},
		pools: map[string]*pool{}, bridges: map[string]*bridge{}, tables: map[table]bool{},
		filters: map[string]bool{}, open: map[string]bool{}, guests: func(string) []guest { return nil },
	}, nil
}

// slot waits for a slot and returns what gives it back.
func (b *builtin) slot() (done func()) {
	b.slots <- struct{}{}
	return func() { <-b.slots }
}

func (b *builtin) close() error {
	b.later.Wait()
	b.link.close()
	b.nft.close()
	b.filterSocket.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, p := range b.pools {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, b.home.Close())...)
}

func (b *builtin) plugin(name string) (plugin, bool) {
	switch name {
	case pluginBridge:
		return plugin{add: b.bridgeAdd, del: b.bridgeDel, check: b.bridgeCheck, gc: b.bridgeGC, status: b.bridgeStatus}, true
	case pluginIPAM:
		return plugin{add: b.ipamAdd, del: b.ipamDel, check: b.ipamCheck, gc: b.ipamGC, status: b.ipamStatus}, true
	case pluginPortMap:
		return plugin{add: b.portMapAdd, del: b.portMapDel, check: b.portMapCheck, gc: b.portMapGC, status: b.portMapStatus}, true
	case pluginLoopback:
		return plugin{add: b.loopbackAdd, del: b.loopbackDel, check: b.loopbackCheck, gc: nothing, status: nothing}, true
	}
	return plugin{}, false
}

func nothing(context.Context, *skel.CmdArgs) error { return nil }

// seam is libcni's way to plugins: those built in run here, with the environment and the JSON they would be executed with;
// others are executed.
type seam struct {
	version.PluginDecoder
	b      *builtin
	stderr stderrLog
}

func newSeam(b *builtin) *seam { return &seam{b: b, stderr: stderrLog{b.log}} }

// stderrLog logs what executed plugins say besides their result.
type stderrLog struct{ log *slog.Logger }

func (w stderrLog) Write(p []byte) (int, error) {
	w.log.Info("network plugin said", "text", strings.TrimSpace(string(p)))
	return len(p), nil
}

// FindInPath finds a plugin; those built in come first.
func (s *seam) FindInPath(name string, paths []string) (string, error) {
	if _, ok := s.b.plugin(name); ok {
		return name, nil
	}
	return invoke.FindInPath(name, paths)
}

// ExecPlugin runs a plugin.
func (s *seam) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if filepath.IsAbs(path) {
		return s.execute(ctx, path, stdin, environ)
	}
	p, ok := s.b.plugin(path)
	if !ok {
		return nil, types.NewError(types.ErrInternal, "no plugin "+path+" is built in", "")
	}
	command, args := parseEnviron(environ, stdin)
	out, err := p.run(ctx, command, args)
	var e *types.Error
	if err != nil && !errors.As(err, &e) {
		err = types.NewError(types.ErrInternal, err.Error(), "")
	}
	return out, err
}

func parseEnviron(environ []string, stdin []byte) (command string, args *skel.CmdArgs) {
	args = &skel.CmdArgs{StdinData: stdin}
	fields := map[string]*string{
		"CNI_COMMAND": &command, "CNI_CONTAINERID": &args.ContainerID, "CNI_NETNS": &args.Netns,
		"CNI_IFNAME": &args.IfName, "CNI_ARGS": &args.Args, "CNI_PATH": &args.Path,
	}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if f := fields[k]; f != nil {
			*f = v
		}
	}
	return command, args
}

func (p plugin) run(ctx context.Context, command string, args *skel.CmdArgs) ([]byte, error) {
	switch command {
	case "ADD":
		result, err := p.add(ctx, args)
		if err != nil {
			return nil, err
		}
		return json.Marshal(result)
	case "DEL":
		return nil, p.del(ctx, args)
	case "CHECK":
		return nil, p.check(ctx, args)
	case "GC":
		return nil, p.gc(ctx, args)
	case "STATUS":
		return nil, p.status(ctx, args)
	case "VERSION":
		var out strings.Builder
		err := versions().Encode(&out)
		return []byte(out.String()), err
	}
	return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+command, "")
}

// PluginMain runs the plugin named by the name the program was started with, berth-bridge for one, as an executed CNI plugin.
// It does not return.
func PluginMain() {
	name := filepath.Base(os.Args[0])
	b, err := openBuiltin(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		_ = types.NewError(types.ErrInternal, err.Error(), "").Print()
		os.Exit(1)
	}
	b.executed = true
	p, ok := b.plugin(name)
	if !ok {
		_ = types.NewError(types.ErrInternal, "no plugin "+name+" is built in", "").Print()
		os.Exit(1)
	}
	bind := func(f func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error { return f(context.Background(), a) }
	}
	add := func(a *skel.CmdArgs) error {
		result, err := p.add(context.Background(), a)
		if err != nil {
			return err
		}
		return result.Print()
	}
	e := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: add, Del: bind(p.del), Check: bind(p.check), GC: bind(p.gc), Status: bind(p.status),
	}, versions(), "CNI plugin "+name)
	if err := b.close(); err != nil && e == nil {
		e = types.NewError(types.ErrInternal, err.Error(), "")
	}
	if e != nil {
		_ = e.Print()
		os.Exit(1)
	}
	os.Exit(0)
}

// IsPlugin says that a program started by this name is to call [PluginMain].
func IsPlugin(arg0 string) bool {
	switch filepath.Base(arg0) {
	case pluginBridge, pluginIPAM, pluginPortMap, pluginLoopback:
		return true
	}
	return false
}
