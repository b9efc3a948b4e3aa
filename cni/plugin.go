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
	log     *slog.Logger
	home    *os.File // the network namespace of the process
	links   *links
	nft     *rtnlPool
	pools   *pools
	bridges *bridges
	tables  *tables
	filters *filters
	slots   slots
	execute *executor
	bridge  *bridgePlugin
	portMap *portMapPlugin
}

// slots bound how many pods are worked on in the kernel at once. More than there are processors only wait for the
// kernel's own locks there, each of them on a thread that the Go runtime never gives back.
type slots chan struct{}

// take waits for a slot and returns what gives it back.
func (s slots) take() (done func()) {
	s <- struct{}{}
	return func() { <-s }
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
	nft := &rtnlPool{protocol: unix.NETLINK_NETFILTER}
	b := &builtin{
		log: log, home: home, nft: nft, execute: newExecutor(log), slots: make(slots, max(2, runtime.GOMAXPROCS(0))),
		links:   &links{socket: rtnlPool{protocol: unix.NETLINK_ROUTE}, ipv6: noIPv6 == nil},
		pools:   &pools{boot: strings.TrimSpace(string(boot)), of: map[string]*pool{}},
		bridges: &bridges{log: log, ipv6: noIPv6 == nil, of: map[string]*bridge{}},
		tables:  &tables{log: log, nft: nft, made: map[table]bool{}},
		filters: newFilters(log, nft),
	}
	b.bridge = &bridgePlugin{
		log: log, links: b.links, pools: b.pools, bridges: b.bridges, tables: b.tables, filters: b.filters,
		slots:   b.slots,
		execute: b.execute,
	}
	b.portMap = &portMapPlugin{bridges: b.bridges, tables: b.tables}
	return b, nil
}

func (b *builtin) close() error {
	b.bridge.later.Wait()
	b.links.socket.close()
	b.nft.close()
	b.filters.socket.close()
	return errors.Join(b.pools.close(), b.home.Close())
}

func (b *builtin) plugin(name string) (plugin, bool) {
	switch name {
	case pluginBridge:
		return plugin{
			add: b.bridge.add, del: b.bridge.del, check: b.bridge.check, gc: b.bridge.gc, status: b.bridge.status,
		}, true
	case pluginIPAM:
		p := ipamPlugin{b.pools}
		return plugin{add: p.add, del: p.del, check: p.check, gc: p.gc, status: p.status}, true
	case pluginPortMap:
		p := b.portMap
		return plugin{add: p.add, del: p.del, check: p.check, gc: p.gc, status: p.status}, true
	case pluginLoopback:
		return plugin{add: loopbackAdd, del: nothing, check: loopbackCheck, gc: nothing, status: nothing}, true
	}
	return plugin{}, false
}

func nothing(context.Context, *skel.CmdArgs) error { return nil }

// seam is libcni's way to plugins: those built in run here, with the environment and the JSON they would be executed
// with; others are executed.
type seam struct {
	version.PluginDecoder
	builtin func(name string) (plugin, bool)
	execute *executor
}

func newSeam(b *builtin) *seam { return &seam{builtin: b.plugin, execute: b.execute} }

// FindInPath finds a plugin; those built in come first.
func (s *seam) FindInPath(name string, paths []string) (string, error) {
	if _, ok := s.builtin(name); ok {
		return name, nil
	}
	return s.execute.FindInPath(name, paths)
}

// ExecPlugin runs a plugin.
func (s *seam) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if filepath.IsAbs(path) {
		return s.execute.ExecPlugin(ctx, path, stdin, environ)
	}
	p, ok := s.builtin(path)
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

// PluginMain runs the plugin named by the name the program was started with, berth-bridge for one, as an executed CNI
// plugin. It does not return.
func PluginMain() {
	name := filepath.Base(os.Args[0])
	b, err := openBuiltin(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		_ = types.NewError(types.ErrInternal, err.Error(), "").Print()
		os.Exit(1)
	}
	b.bridge.executed = true
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
