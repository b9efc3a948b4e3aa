// Package cri is a container runtime whose methods are those of the CRI: the agent calls them in-process, and a socket
// can serve them to anybody. It knows pods only as CRI messages.
//
// Everything is a record first. What a sandbox or a container has in the kernel is made by an ordered list of steps,
// each with an undo that is safe when the step never ran, so that after a kill -9 at any instant [New] either finishes
// or undoes what was begun. Containers are children of their pod's keeper and do not notice that this process ends.
package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/class"
	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/plugins"
	"github.com/berth-node/berth/cri/quarantine"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/step"
	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/cri/stream"
)

// Config says where a [Server] lives. RootDir, RunDir, Helper, BridgeName and PodCIDR are required.
type Config struct {
	RootDir    string // images, snapshots, records
	RunDir     string // what is of no use after a boot; may be on disk nevertheless
	LogDir     string // logs of pods, for Purge; the paths themselves come with each pod
	CgroupRoot string // pods without a cgroup parent of their own go under it
	// CgroupDriver is cgroupfs or systemd; "" is cgroupfs. With systemd the parents of pods are slices.
	CgroupDriver string

	Helper string // path of the helper binary

	Starts

	BridgeName string
	PodCIDR    netip.Prefix
	CNIConfDir string // "" = always the network built in
	// NeedCNI: pods wait while there is no configuration in CNIConfDir. Else the network built in is used.
	NeedCNI    bool
	CNIBinDirs []string // binaries of the plugins CNIConfDir names

	BlockIOFile string // classes of block I/O, see [class.Open]; "" = none

	NRI *nri.Config // nil = no plugins; Version and Log are filled in

	CDISpecDirs []string // of device specifications, the later before the earlier; empty = no such devices

	Images ImagesConfig

	OneAtATime bool // pods are taken up one after the other at the start, as memory is short

	LogMaxSize  int64 // a container's log rotates at this size; 0 = never
	LogMaxFiles int

	Log *slog.Logger
}

// Starts says how containers are started.
type Starts struct {
	HandlersFile string // which runtime handlers there are, see [handler.Open]; "" = those that are found
	// ContainerStart is who starts containers of the handler that is built in: libcontainer, or auto, which is "" too,
	// and starts ordinary ones without it.
	ContainerStart string
}

const startLibcontainer = "libcontainer"

// ImagesConfig says where images come from.
type ImagesConfig struct {
	RegistryConfigDir string        // hosts.toml files, one directory a registry
	Dir               string        // of archives that are imported at the start
	Pinned            []string      // names that garbage collection leaves, * in them for anything
	MaxParallelPulls  int           // layers downloaded at a time; 0 = 6
	MaxRegistryPulls  int           // and from one registry; 0 = as many as in all
	PullStallTimeout  time.Duration // a pull without a byte for so long is given up; 0 = 1 minute
}

// New opens the records, brings every sandbox and container they name to a state that holds, and removes what no record
// explains.
func New(ctx context.Context, c Config) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.RootDir == "" || c.RunDir == "" || c.Helper == "" || c.BridgeName == "" || !c.PodCIDR.IsValid() {
		return nil, errors.New("open runtime: root and run directory, helper, bridge and pod addresses are required")
	}
	r := &core{cfg: c, log: c.Log, tasks: background.New(), hub: &events.Hub{}}
	if err := r.open(ctx); err != nil {
		return nil, fmt.Errorf("open runtime: %w", errors.Join(err, r.close()))
	}
	return newServer(r), nil
}

// core is all that the runtime is made of.
type core struct {
	cfg     Config
	log     *slog.Logger
	db      *store.DB
	host    *host.Host
	images  *imageService
	meters  *meters
	pods    *sandbox.Sandboxes
	ctrs    *container.Containers
	hub     *events.Hub
	urls    *urls
	tasks   *background.Tasks
	closers []func() error // in reverse order

	adopted int // pods whose records were lost
}

func (r *core) open(ctx context.Context) error {
	m, err := r.openMachine()
	if err != nil {
		return err
	}
	r.host = m
	if err := r.openTables(r.images.dropped); err != nil {
		return err
	}
	server, err := stream.Listen(streams{r.ctrs, r.pods})
	if err != nil {
		return err
	}
	r.urls = &urls{server, r.ctrs, r.pods}
	r.closers = append(r.closers, server.Close)
	if err := r.recover(ctx); err != nil {
		return err
	}
	r.tasks.Start(func(ctx context.Context) {
		if err := server.Serve(ctx); err != nil {
			r.log.Error("exec, attach and port-forward do not work any more", "error", err)
		}
	})
	r.tasks.Start(r.images.collect)
	r.tasks.Start(r.images.importDir)
	return r.openPlugins()
}

// openImages opens the store of images, and the service that clients have of it.
func (r *core) openImages(m *host.Host) error {
	c := &r.cfg.Images
	images := &imageService{
		host: m, db: r.db, tasks: r.tasks, log: r.log, dir: c.Dir, imported: make(chan struct{}), room: newRoom(),
	}
	store, err := image.Open(image.Config{
		Root: m.Paths.Content(), DB: r.db, Snapshots: m.Snaps, RegistryConfigDir: c.RegistryConfigDir, Archives: c.Dir, Pinned: c.Pinned,
		MaxParallel: c.MaxParallelPulls, MaxPerRegistry: c.MaxRegistryPulls, StallTimeout: c.PullStallTimeout,
		Named: images.tellNamed, Log: r.log,
	})
	if err != nil {
		return err
	}
	images.store, m.Images, r.images = store, store, images
	r.closers = append(r.closers, store.Close)
	return nil
}

// openMachine opens all that sandboxes and containers are made of.
func (r *core) openMachine() (*host.Host, error) {
	c := r.cfg
	m := &host.Host{
		Steps: step.Runner{Log: r.log}, Paths: host.Layout{Root: c.RootDir, Run: c.RunDir}, Log: r.log, CgroupRoot: c.CgroupRoot, LogMaxSize: c.LogMaxSize, LogMaxFiles: c.LogMaxFiles,
		CDI: &host.CDI{Dirs: c.CDISpecDirs}, Plugins: plugins.New(r.log),
	}
	var err error
	if m.Classes, err = class.Open(c.BlockIOFile); err != nil {
		return nil, err
	}
	if err := host.MakeDirs(m.Paths); err != nil {
		return nil, err
	}
	if m.BootID, err = host.BootID(); err != nil {
		return nil, err
	}
	if r.db, err = store.Open(store.Config{Path: m.Paths.DB(), Beside: m.Paths.RecordsCopy(), Log: r.log}); err != nil {
		return nil, err
	}
	r.closers = append(r.closers, r.db.Close)
	if m.Snaps, err = snapshot.New(m.Paths.Snapshots(), r.db, r.log); err != nil {
		return nil, err
	}
	if err := r.openImages(m); err != nil {
		return nil, err
	}
	m.Mounts = host.NewKernelMounts()
	h, err := cgroups.Open("")
	if err != nil {
		return nil, err
	}
	made, end, err := host.OpenGroups(h, c.CgroupDriver)
	if err != nil {
		return nil, err
	}
	m.Cgroups = made
	r.closers = append(r.closers, end)
	if m.Host, err = oci.ReadHost(); err != nil {
		return nil, err
	}
	m.Host.Unified = h.Mode() == cgroups.Unified
	m.Host.Hugetlb = host.HugetlbUsable(h)
	m.Host.Swap = h.SwapAccounted()
	m.Host.Systemd = c.CgroupDriver == cgroups.DriverSystemd
	if err := m.MakeOwnGroups(); err != nil {
		return nil, err
	}
	helper, err := keeper.OpenHelper(c.Helper, host.KeeperDirs(m.Paths)...)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, helper.Close)
	m.Keepers = host.RealKeepers{Helper: helper}
	m.UserNamespaces = m.LookForUserNS(host.UntilAnswered(m.TryUserNS))
	if m.Runtimes, err = host.OpenRuntimes(c.HandlersFile, c.Helper, m, helper, h, c.ContainerStart != startLibcontainer); err != nil {
		return nil, err
	}
	return m, r.openNetwork(m)
}

func (r *core) openNetwork(m *host.Host) error {
	n, err := cni.New(cni.Config{
		StateDir: m.Paths.IPAM(), NetNSDir: m.Paths.NetNS(), CacheDir: m.Paths.CNICache(), RecordDir: m.Paths.CNIRecords(),
		ConfDir: r.cfg.CNIConfDir, NeedConf: r.cfg.NeedCNI, BinDirs: r.cfg.CNIBinDirs, BridgeName: r.cfg.BridgeName, PodCIDR: r.cfg.PodCIDR, Log: r.log,
	})
	if err != nil {
		return err
	}
	if err := n.Watch(); err != nil {
		r.log.Warn("a bridge or a table of the network that somebody removes is made again for the next pod only", "error", err)
	}
	m.Net = n
	r.closers = append(r.closers, n.Close)
	return nil
}

func (r *core) openTables(dropped func(imageID string)) error {
	l := r.host.Paths
	sandboxes, err := ledger.New(r.db, "sandboxes", func(r sandbox.Record) string { return l.Sandbox(r.ID).Record() })
	if err != nil {
		return err
	}
	ctrs, err := ledger.New(r.db, "containers", func(r container.Record) string { return l.Sandbox(r.SandboxID).ContainerRecord(r.ID) })
	if err != nil {
		return err
	}
	q := quarantine.New(r.host, r.tasks, sandboxes.Drop, ctrs.Drop)
	r.pods = sandbox.NewSandboxes(sandbox.NewTable(r.host, sandboxes, q), q, r.hub, r.tasks)
	r.ctrs = container.New(container.NewTable(r.host, ctrs, r.pods, dropped), r.hub, r.tasks)
	r.meters = &meters{r.host, r.pods, r.ctrs}
	return nil
}

// Run serves until ctx ends, and returns when everything it started has ended. Pods go on running.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	return s.Close()
}

// Close ends the server without touching any pod.
func (s *Server) Close() error { return s.core.close() }

// close ends the server without touching any pod.
func (r *core) close() error {
	r.tasks.End()
	var errs []error
	for _, end := range slices.Backward(r.closers) {
		if err := end(); err != nil && !errors.Is(err, os.ErrClosed) && !isClosedListener(err) {
			errs = append(errs, err)
		}
	}
	r.closers = nil
	return errors.Join(errs...)
}

// Used says whether a runtime has been on a root directory.
func Used(rootDir string) bool {
	_, err := os.Lstat(host.Layout{Root: rootDir}.DB())
	return err == nil
}

// Stores are the files that a version of the runtime writes its own way: its records, and their copy of this boot.
func Stores(rootDir, runDir string) []string {
	l := host.Layout{Root: rootDir, Run: runDir}
	return []string{l.DB(), l.RecordsCopy(), filepath.Join(l.Content(), "images")}
}

// Places are the files and directories that a runtime makes, and what they are for. What is in a directory whose path
// ends with a slash is the directory's own.
func Places(rootDir, runDir string) map[string]string {
	l := host.Layout{Root: rootDir, Run: runDir}
	return map[string]string{
		l.DB(): "records of sandboxes, containers and snapshots", l.RecordsCopy(): "the same, of this boot",
		l.Content() + "/": "images", l.Snapshots() + "/": "layers and writable root file systems",
		l.NetNS() + "/": "network namespaces of pods, a mount each", l.IPAM() + "/": "addresses of pods, by boot",
		l.CNICache() + "/": "what CNI plugins were told", l.CNIRecords() + "/": "which CNI plugins are to be told of a pod's end",
		l.Sandboxes() + "/":  "keepers of pods: sockets, records, exits",
		l.Containers() + "/": "bundles of containers", l.State() + "/": "states of containers", l.Runtimes() + "/": "states of other OCI runtimes",
	}
}

// Mounts are the mount points that a runtime makes: each is below one of these directories, or is one.
func Mounts(rootDir, runDir string) []string {
	l := host.Layout{Root: rootDir, Run: runDir}
	return append(l.Volatile(), l.NetNS(), l.IPAM())
}
