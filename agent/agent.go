// Package agent is the node's agent: it has the parts of a kubelet, and this file puts them together. What runs the containers
// is handed in.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/api/pki"
	"github.com/berth-node/berth/agent/api/server"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/credential"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/dra"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/imagegc"
	"github.com/berth-node/berth/agent/intercept"
	"github.com/berth-node/berth/agent/kills"
	"github.com/berth-node/berth/agent/metrics"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pulled"
	"github.com/berth-node/berth/agent/shutdown"
	"github.com/berth-node/berth/agent/source"
	"github.com/berth-node/berth/agent/source/url"
	"github.com/berth-node/berth/agent/stats"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// Config is what an [Agent] works with.
type Config struct {
	config.Config

	Runtime pod.Runtime
	// Layers tells what containers have written. Nil: the runtime's statistics are asked, which are more than that.
	Layers func(context.Context) map[string]*runtimeapi.FilesystemUsage
	Images http.Handler // serves /images of the API
	// ImagesNamed, of a runtime that tells, has fn called with the names that have an image from now on.
	ImagesNamed func(fn func(names []string))
	Version     string
	// Configz is what /configz shows; nil: it is not served.
	Configz func() any
	// OneAtATime has pods started and taken down one after the other, as memory is short.
	OneAtATime bool
	// Ready is called once, when the agent answers and has read every manifest.
	Ready func()
	Log   *slog.Logger
}

// Agent is one node's agent.
type Agent struct {
	cfg       Config
	log       *slog.Logger
	source    *source.Source
	pods      *pod.Manager
	pins      *pinning.Manager // nil: nothing is pinned
	devices   *device.Manager
	claims    *dra.Manager
	events    *event.Recorder
	ring      *event.Ring // of the events
	tree      *kube.Tree
	classes   classes
	files     files
	synced    atomic.Bool
	read      chan struct{} // closed when synced
	stats     *stats.Collector
	probed    *metrics.Probes
	images    *imagegc.Collector
	pulled    *pulled.Records
	work      *metrics.Work
	server    atomic.Pointer[server.Server] // nil before it serves
	authority *pki.Authority                // nil: certificates are somebody else's
	groups    *os.File                      // locked as long as the agent lives
}

// New puts the parts together and takes the groups of pods for itself. Nothing runs before [Agent.Run].
func New(c Config) (*Agent, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	work := metrics.NewWork()
	c.Runtime = intercept.Runtime(c.Runtime, work.Call, intercept.Log(c.Log, "runtime was called"))
	a := &Agent{cfg: c, log: c.Log, probed: metrics.NewProbes(), work: work, files: files{of: map[types.NamespacedName]string{}}, read: make(chan struct{})}
	a.classes.changed = make(chan struct{}, 1)
	memory, err := hostMemory()
	if err != nil {
		return nil, err
	}
	h, tree, div, err := groupTree(c.Config, memory)
	if err != nil {
		return nil, err
	}
	a.tree = tree
	if err := a.open(h, div, memory); err != nil {
		if a.groups != nil {
			a.groups.Close()
		}
		return nil, err
	}
	return a, nil
}

// open opens the agent's parts. The groups get their values when nothing else can refuse the start any more, and never while they are
// another agent's.
func (a *Agent) open(h *cgroups.Hierarchy, div config.Division, memory int64) error {
	c := a.cfg
	var err error
	if a.groups, err = lockGroups(h, a.tree, c.CgroupRoot); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := a.openPods(div, memory); err != nil {
		return err
	}
	a.stats, a.images = a.collector(h, memory), a.imageCollector()
	if a.authority, err = server.OpenAuthority(c.Server); err != nil {
		return err
	}
	if a.source, err = openSource(c, a.reportProblem); err != nil {
		return err
	}
	if err := a.tree.Setup(); err != nil {
		return err
	}
	if a.groups == nil { // there were none
		if a.groups, err = lockGroups(h, a.tree, c.CgroupRoot); err != nil {
			return err
		}
	}
	if err := a.reserveNode(h, div); err != nil {
		return err
	}
	if err := a.settleReserved(); err != nil {
		return err
	}
	if err := recordRuntime(c.RootDir, c.Endpoint); err != nil {
		return err
	}
	site := kube.Layout{Root: c.CgroupRoot, LogDir: c.LogDir, NodeName: c.NodeName, Options: a.tree.Options(), Pins: filepath.Join(c.RootDir, pinsFile), Kills: filepath.Join(c.RootDir, kills.File)}
	return site.Save(c.RunDir)
}

// eventsFile is where the latest events outlive a restart, below the root directory.
const eventsFile = "events"

// openPods opens what pods are given of the node, and puts together what runs them.
func (a *Agent) openPods(div config.Division, memory int64) error {
	c := a.cfg
	credentials, err := openCredentials(c)
	if err != nil {
		return err
	}
	labels, err := c.Labels()
	if err != nil {
		return err
	}
	a.ring = event.NewRing(event.Config{Host: c.NodeName, File: filepath.Join(c.RootDir, eventsFile), Log: c.Log})
	a.events = event.NewRecorder(c.NodeName, a.ring)
	if a.devices, err = openDevices(&c); err != nil {
		return err
	}
	if a.claims, err = openClaims(&c, labels); err != nil {
		return err
	}
	if a.pins, err = openPins(&c, div, a.devices); err != nil {
		return err
	}
	if a.pulled, err = openPulled(&c); err != nil {
		return err
	}
	objects := new(object.Store)
	groups, devices, given := a.givePods(objects)
	parallel := 0 // as many as are good for the machine
	if c.OneAtATime {
		parallel = 1
	}
	a.pods, err = pod.New(pod.Config{
		Runtime: freeingRuntime{c.Runtime, a.freeImages, a.log}, Objects: objects,
		Cgroups: intercept.Cgroups(groups, a.work.Group, intercept.Log(c.Log, "cgroup was changed")),
		Volumes: volume.New(volume.Config{
			Root: c.RootDir, Own: []string{c.RunDir}, Open: deviceDirs(c.Place), Log: c.Log, Quotas: c.Resources.LocalStorage,
		}),
		Node: pod.NodeConfig{
			Name: c.NodeName, Labels: labels, IPs: nodeIPs, Memory: memory, Allocatable: div.Allocatable,
			Groups: a.tree.Options(), GroupFirst: c.CgroupDriver == cgroups.DriverSystemd,
		},
		Given:    pod.Given{Resources: given, Extended: devices.extended, Pins: a.pins},
		Images:   pod.ImageConfig{Credentials: credentials, Pulled: a.pulled},
		Security: pod.SecurityConfig{Sysctls: c.Sysctls, SeccompDefault: c.SeccompDefault},
		DNS:      pod.DNSConfig{ResolvConf: c.ResolvConf, Servers: c.ClusterDNS, Domain: c.ClusterDomain},
		RootDir:  c.RootDir, LogDir: c.LogDir, DiskUse: diskUse(&c.Resources),
		Backoff: plan.Delays{Initial: c.BackoffInitial, Max: c.BackoffMax}, MaxParallelStarts: parallel,
		Observers: pod.Observers{Probes: a.probed, Work: a.work}, Events: a.events, Log: c.Log,
	})
	if err == nil && c.ImagesNamed != nil {
		c.ImagesNamed(a.pods.ImagesNamed)
	}
	return err
}

func openSource(c Config, report func(source.Problem)) (*source.Source, error) {
	headers, err := url.ParseHeaders(c.ManifestHeaders)
	if err != nil {
		return nil, fmt.Errorf("--manifest-url-header: %w", err)
	}
	return source.New(source.Config{
		URL: c.ManifestURL, Header: headers,
		Dir: c.ManifestDir, NodeName: c.NodeName, StateDir: filepath.Join(c.RootDir, "manifests"), Log: c.Log,
		Credentials: os.Getenv("CREDENTIALS_DIRECTORY"), Report: report,
	}), nil
}

// heedShutdown gives pods time to end when the machine is shut down, where that was asked for.
func (a *Agent) heedShutdown(ctx context.Context, g *errgroup.Group) {
	periods, err := a.cfg.Periods()
	if err != nil || len(periods) == 0 {
		return
	}
	down := shutdown.New(shutdown.Config{Periods: periods, Pods: a.pods, Boot: pod.BootID(), Log: a.log})
	down.Ask(ctx)
	g.Go(func() error { down.Run(ctx); return nil })
}

// diskUse counts what pods have on the disk, where that is limited.
func diskUse(r *config.Resources) func(context.Context, string) (int64, bool) {
	if !r.LocalStorage {
		return nil
	}
	return stats.Used
}

// openCredentials is nil when no plugins were configured.
func openCredentials(c Config) (pod.Credentials, error) {
	if c.CredentialConfig == "" {
		return nil, nil
	}
	return credential.New(credential.Config{Path: c.CredentialConfig, BinDir: c.CredentialBinDir, Log: c.Log})
}

// Run runs the node's pods and serves the API until ctx ends and all that was started here has ended. The pods go on.
func (a *Agent) Run(ctx context.Context) error {
	defer a.groups.Close()
	defer a.stats.Close()
	srv, err := a.listen(ctx)
	if err != nil {
		return err
	}
	a.server.Store(srv)
	g, ctx := errgroup.WithContext(ctx)
	a.heedShutdown(ctx, g)
	found, wanted := make(chan desired.Update), make(chan desired.Update)
	g.Go(func() error { return ended(ctx, "read manifests", a.source.Run(ctx, found)) })
	g.Go(func() error { a.pass(ctx, found, wanted); return nil })
	g.Go(func() error { return ended(ctx, "run pods", a.pods.Run(ctx, wanted)) })
	a.runDevices(ctx, g)
	g.Go(func() error { a.shareCPU(ctx); return nil })
	g.Go(func() error {
		kills.Keep(ctx, kills.Config{RootDir: a.cfg.RootDir, Tree: a.tree, Pods: a.pods.List, Events: a.events, Log: a.log})
		return nil
	})
	g.Go(func() error { a.settle(ctx); return nil })
	g.Go(func() error { a.ring.Run(ctx); return nil })
	g.Go(func() error { a.watchDrift(ctx); return nil })
	g.Go(func() error { a.rotateLogs(ctx); return nil })
	g.Go(func() error { a.collectImages(ctx); return nil })
	g.Go(func() error { a.removeOrphans(ctx); return nil })
	srv.Run(ctx, g)
	return g.Wait()
}

// ended is the error of a part that has ended: none when it was told to.
func ended(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		return fmt.Errorf("%s: ended by itself", what)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// pass hands on what the manifests ask for and keeps which file asks for what.
func (a *Agent) pass(ctx context.Context, in <-chan desired.Update, out chan<- desired.Update) {
	for {
		var u desired.Update
		select {
		case <-ctx.Done():
			return
		case u = <-in:
		}
		if !u.Synced && u.Kind == object.Pod {
			a.files.set(u)
		}
		select {
		case <-ctx.Done():
			return
		case out <- u:
		}
		if u.Synced && !a.synced.Swap(true) {
			a.log.Info("agent is ready", "manifests", a.cfg.ManifestDir, "api", filepath.Join(a.cfg.RunDir, "berth.sock"))
			if a.cfg.Ready != nil {
				a.cfg.Ready()
			}
			close(a.read)
		}
	}
}

// settleAfter is how long after the last change of a pod a burst is over.
const settleAfter = 5 * time.Second

// settle gives the memory that a burst of pods took back to the machine. The Go runtime would do so too, but only in part, and
// for an agent that idles nearly always the rest would be most of its size.
func (a *Agent) settle(ctx context.Context) {
	quiet := time.NewTimer(settleAfter)
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		// It ends with ctx.
		_ = a.pods.Watch(ctx, func(watch.EventType, *corev1.Pod) error {
			quiet.Reset(settleAfter)
			return nil
		})
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-quiet.C:
			debug.FreeOSMemory()
		}
	}
}

// healthy is an error until the manifests have been read, and while the runtime says that it is not ready. That the network
// is not ready is not the agent's illness: pods on the host's network run, and the others wait for it.
func (a *Agent) healthy() error {
	if !a.synced.Load() {
		return errors.New("the manifests are being read")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := a.cfg.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask the runtime: %w", err)
	}
	for _, c := range resp.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			return fmt.Errorf("the runtime is not ready: %s", c.GetMessage())
		}
	}
	return nil
}

// Alive is nil as long as the agent's parts answer. It hangs when they do, which is as telling.
func (a *Agent) Alive(context.Context) error {
	a.pods.List()
	a.source.Problems()
	return nil
}

// files knows which manifest asks for a pod.
type files struct {
	mu sync.Mutex
	of map[types.NamespacedName]string
}

func (f *files) set(u desired.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.Pod == nil {
		delete(f.of, u.Key)
		return
	}
	f.of[u.Key] = u.File
}

func (f *files) get(key types.NamespacedName) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[key]
}
