// Package cri is a container runtime whose methods are those of the CRI: the agent calls them in-process, and a socket can
// serve them to anybody. It knows pods only as CRI messages.
//
// Everything is a record first. What a sandbox or a container has in the kernel is made by an ordered list of steps, each with
// an undo that is safe when the step never ran, so that after a kill -9 at any instant [New] either finishes or undoes what was
// begun. Containers are children of their pod's keeper and do not notice that this process ends.
package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/class"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
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

	HandlersFile string // which runtime handlers there are, see [handler.Open]; "" = those that are found

	BridgeName string
	PodCIDR    netip.Prefix
	CNIConfDir string // "" = always the network built in
	// NeedCNI: pods wait while there is no configuration in CNIConfDir. Else the network built in is used.
	NeedCNI    bool
	CNIBinDirs []string // binaries of the plugins CNIConfDir names

	BlockIOFile string // classes of block I/O, see [class.Open]; "" = none

	NRI *nri.Config // nil = no plugins; Version and Log are filled in

	CDISpecDirs []string // of device specifications, the later before the earlier; empty = no such devices

	RegistryConfigDir string        // hosts.toml files, one directory a registry
	ImageDir          string        // archives imported at start
	PinnedImages      []string      // names that garbage collection leaves, * in them for anything
	MaxParallelPulls  int           // layers downloaded at a time; 0 = 6
	MaxRegistryPulls  int           // and from one registry; 0 = as many as in all
	PullStallTimeout  time.Duration // a pull without a byte for so long is given up; 0 = 1 minute

	OneAtATime bool // pods are taken up one after the other at the start, as memory is short

	LogMaxSize  int64 // a container's log rotates at this size; 0 = never
	LogMaxFiles int

	Log *slog.Logger
}

// Server is the runtime. It is safe for concurrent use. What its methods return shares parts with what it keeps, so it is for
// reading only.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg     Config
	log     *slog.Logger
	db      *store.DB
	machine *machine
	images  *image.Store
	pods    *pods
	ctrs    *containers
	hub     *hub
	urls    *stream.Server
	life    *life
	closers []func() error // in reverse order

	adopted  int           // pods whose records were lost
	imported chan struct{} // closed when the image directory was read
	named    atomic.Pointer[func(names []string)]
}

var (
	_ runtimeapi.RuntimeServiceServer = (*Server)(nil)
	_ runtimeapi.ImageServiceServer   = (*Server)(nil)
)

// New opens the records, brings every sandbox and container they name to a state that holds, and removes what no record
// explains.
func New(ctx context.Context, c Config) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.RootDir == "" || c.RunDir == "" || c.Helper == "" || c.BridgeName == "" || !c.PodCIDR.IsValid() {
		return nil, errors.New("open runtime: root and run directory, helper, bridge and pod addresses are required")
	}
	s := &Server{cfg: c, log: c.Log, life: newLife(), hub: &hub{}, imported: make(chan struct{})}
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("open runtime: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	m, err := s.openMachine()
	if err != nil {
		return err
	}
	s.machine = m
	if err := s.openTables(); err != nil {
		return err
	}
	s.ctrs.dropped = s.containerDropped
	if s.urls, err = stream.Listen(streams{s.ctrs, s.pods}); err != nil {
		return err
	}
	s.closers = append(s.closers, s.urls.Close)
	if err := s.recover(ctx); err != nil {
		return err
	}
	s.life.start(func(ctx context.Context) {
		if err := s.urls.Serve(ctx); err != nil {
			s.log.Error("exec, attach and port-forward do not work any more", "error", err)
		}
	})
	s.life.start(s.collectImages)
	s.life.start(s.importDir)
	return s.openPlugins()
}

// openMachine opens all that sandboxes and containers are made of.
func (s *Server) openMachine() (*machine, error) {
	c := s.cfg
	m := &machine{
		runner: runner{log: s.log}, paths: layout{root: c.RootDir, run: c.RunDir}, log: s.log, cgroupRoot: c.CgroupRoot, logMaxSize: c.LogMaxSize, logMaxFiles: c.LogMaxFiles,
		cdi: &cdiDevices{dirs: c.CDISpecDirs},
	}
	var err error
	if m.classes, err = class.Open(c.BlockIOFile); err != nil {
		return nil, err
	}
	if err := makeDirs(m.paths); err != nil {
		return nil, err
	}
	if m.bootID, err = bootID(); err != nil {
		return nil, err
	}
	if s.db, err = store.OpenWith(store.Config{Path: m.paths.db(), Beside: m.paths.recordsCopy(), Log: s.log}); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.db.Close)
	if m.snaps, err = snapshot.New(m.paths.snapshots(), s.db, s.log); err != nil {
		return nil, err
	}
	s.images, err = image.Open(image.Config{
		Root: m.paths.content(), DB: s.db, Snapshots: m.snaps, RegistryConfigDir: c.RegistryConfigDir, Archives: c.ImageDir, Pinned: c.PinnedImages,
		MaxParallel: c.MaxParallelPulls, MaxPerRegistry: c.MaxRegistryPulls, StallTimeout: c.PullStallTimeout,
		Named: s.imagesNamed, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.images.Close)
	m.images, m.mounts = s.images, kernelMounts{}
	h, err := cgroups.Open("")
	if err != nil {
		return nil, err
	}
	if m.cgroups, err = s.openGroups(h); err != nil {
		return nil, err
	}
	if m.host, err = oci.ReadHost(); err != nil {
		return nil, err
	}
	m.host.Unified = h.Mode() == cgroups.Unified
	m.host.Hugetlb = hugetlbUsable(h)
	m.host.Swap = h.SwapAccounted()
	m.host.Systemd = c.CgroupDriver == cgroups.DriverSystemd
	if err := m.makeOwnGroups(); err != nil {
		return nil, err
	}
	helper, err := keeper.OpenHelper(c.Helper, keeperDirs(m.paths)...)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, helper.Close)
	m.keepers = realKeepers{helper}
	m.userNamespaces = m.lookForUserNS(untilAnswered(m.tryUserNS))
	if m.runtimes, err = openRuntimes(c, m.paths, helper, h); err != nil {
		return nil, err
	}
	return m, s.openNetwork(m)
}

// makeDirs makes the directories whose content a boot ends; those below the root directory are made by who needs them, when it can be
// written. They are on tmpfs, wherever the run directory is: each pod makes and removes a dozen small files there, and a filesystem
// on a disk takes ten times as long for that.
func makeDirs(l layout) error {
	if err := os.MkdirAll(l.run, 0o711); err != nil {
		return err
	}
	for _, dir := range l.volatile() {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		if err := mountVolatile(dir); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		// What is in them is closed to others; the root of a pod with ids of its own is nobody here and has to come by.
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) openNetwork(m *machine) error {
	n, err := cni.New(cni.Config{
		StateDir: m.paths.ipam(), NetNSDir: m.paths.netns(), CacheDir: m.paths.cniCache(), ConfDir: s.cfg.CNIConfDir, NeedConf: s.cfg.NeedCNI, BinDirs: s.cfg.CNIBinDirs,
		BridgeName: s.cfg.BridgeName, PodCIDR: s.cfg.PodCIDR, Log: s.log,
	})
	if err != nil {
		return err
	}
	if err := n.Watch(); err != nil {
		s.log.Warn("a bridge or a table of the network that somebody removes is made again for the next pod only", "error", err)
	}
	m.net = n
	s.closers = append(s.closers, n.Close)
	return nil
}

func (s *Server) openTables() error {
	l := s.machine.paths
	sandboxes, err := newLedger(s.db, "sandboxes", func(r sandboxRecord) string { return l.record(r.ID) })
	if err != nil {
		return err
	}
	ctrs, err := newLedger(s.db, "containers", func(r containerRecord) string { return l.ctrRecord(r.SandboxID, r.ID) })
	if err != nil {
		return err
	}
	s.pods, s.ctrs = newManagers(s.machine, sandboxes, ctrs, s.hub, s.life)
	return nil
}

// newManagers makes the two that know each other.
func newManagers(m *machine, sandboxes ledger[sandboxRecord], ctrs ledger[containerRecord], h *hub, l *life) (*pods, *containers) {
	ps := &pods{machine: m, records: sandboxes, byID: newIndex[*sandbox]("sandbox"), events: h, life: l}
	ps.unreadable.removing = newOplock()
	cs := &containers{machine: m, records: ctrs, byID: newIndex[*container]("container"), events: h, life: l, pods: ps}
	ps.containers = cs
	return ps, cs
}

// Run serves until ctx ends, and returns when everything it started has ended. Pods go on running.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	return s.Close()
}

// Close ends the server without touching any pod.
func (s *Server) Close() error {
	s.life.end()
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		if err := c(); err != nil && !errors.Is(err, os.ErrClosed) && !isClosedListener(err) {
			errs = append(errs, err)
		}
	}
	s.closers = nil
	return errors.Join(errs...)
}

// importDir imports the archives in the image directory. It runs beside everything else: pods whose images are here start at
// once, the others' wait in getImage. What the disk had no room for, or could not be written for, is imported later.
func (s *Server) importDir(ctx context.Context) {
	err := s.images.ImportArchives(ctx)
	close(s.imported)
	for told := ""; err != nil && ctx.Err() == nil; err = s.images.ImportArchives(ctx) {
		if err.Error() != told {
			s.log.Error("images are not imported", "dir", s.cfg.ImageDir, "error", err)
			told = err.Error()
		}
		if !snapshot.OfTheMoment(err) {
			return
		}
		select {
		case <-ctx.Done():
		case <-s.db.Mended():
		case <-time.After(importAgain):
		}
	}
}

// importAgain is how long after a failure for want of room images are imported again: nothing tells that there is room.
const importAgain = 30 * time.Second

// containerDropped looks whether a container was the last that an image, removed meanwhile, had to stay for.
func (s *Server) containerDropped(imageID string) {
	if _, err := s.images.Get(imageID); errors.Is(err, image.ErrNotFound) {
		s.life.start(s.collectImages)
	}
}

// collectImages removes the layers that no image and no container has any more, and what pulls that failed have left.
func (s *Server) collectImages(ctx context.Context) {
	if err := s.images.Collect(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("content that nobody needs is not removed", "error", err)
	}
}

// keeperDirs are the directories of the keepers that an earlier server has left.
func keeperDirs(l layout) []string {
	entries, err := os.ReadDir(l.sandboxes())
	if err != nil {
		return nil // they are looked for again
	}
	var out []string
	for _, e := range entries {
		out = append(out, l.keeper(e.Name()))
	}
	return out
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b)), err
}

// hugetlbUsable says whether containers can have limits of huge pages. Beside v1 controllers, a v2 hierarchy may hold this one: then
// libcontainer, which takes such a machine for one of v1, cannot set it, and every container of a client that names all page
// sizes, as kubelet does, would fail.
func hugetlbUsable(h *cgroups.Hierarchy) bool {
	dir := h.Dir("hugetlb", "/")
	return dir != "" && (h.Mode() == cgroups.Unified || dir != h.Dir("", "/"))
}
