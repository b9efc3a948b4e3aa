package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/cri"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/remote"
	"github.com/berth-node/berth/cri/serve"
	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/systemd"
)

func runtimeCommand(runDir func() string, version string) *cobra.Command {
	c := config.Default()
	listen := config.CRISocketName
	cmd := &cobra.Command{
		Use: "runtime", Short: "Run the container runtime alone, for other clients of the CRI",
		Long: `Serve the embedded container runtime on a socket, for a kubelet, crictl or any other client of the CRI, until SIGTERM or SIGINT.
Containers go on running when it ends, however it ends; the next runtime or agent on the same directories takes them over.

Pods are run by libcontainer, or by the runtime handler that they name: crun and runc where they are in the PATH, wasm for WebAssembly
modules, and those of --runtime-handlers.`,
		Example: "  berth runtime --listen unix:///run/berth/cri.sock\n  kubelet --container-runtime-endpoint unix:///run/berth/cri.sock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.RunDir = runDir()
			if err := errors.Join(c.Place.Complete(), c.Embedded.Complete(), c.Validate()); err != nil {
				return err
			}
			c.CRISocket = config.InRunDir(c.RunDir, listen)
			if c.CRISocket == "" {
				return commandline.Usagef("--listen must not be empty")
			}
			return runRuntime(cmd.Context(), c, version)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", listen, "socket that the CRI is served on; a relative path is in the run directory")
	c.Place.AddFlags(cmd.Flags())
	c.Embedded.AddFlags(cmd.Flags())
	c.Logging.AddFlags(cmd.Flags())
	return cmd
}

func runRuntime(ctx context.Context, c config.Config, version string) error {
	if os.Geteuid() != 0 {
		return errors.New("the runtime makes namespaces, cgroups and mounts, and must run as root")
	}
	log := c.Logger(os.Stderr)
	short := saveMemory(c.RootDir, false, log)
	relaxMonitor(log)
	klog.SetSlogLogger(log) // what Kubernetes libraries say goes where everything goes
	lock, err := agent.Lock(c.RunDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	notify := systemd.NewNotifier(log)
	rt, err := embedded(ctx, opening{Config: c, version: version, short: short, log: log}, config.Served)
	if err != nil {
		return err
	}
	rt.ready = func() { notify.Ready("serving the CRI") }
	err = rt.run(ctx)
	notify.Stopping()
	log.Info("runtime ends, its containers go on running")
	return err
}

// runtime is what runs the agent's containers.
type runtime struct {
	pod.Runtime
	images http.Handler
	named  func(fn func(names []string))                                // nil: it does not tell
	room   func(fn func(context.Context, time.Time) (bool, error))      // nil: it does not ask
	layers func(context.Context) map[string]*runtimeapi.FilesystemUsage // nil: it does not tell of them alone
	// shed removes the files of containers that have ended; nil: it cannot.
	shed func(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error)
	// Nil: what no image explains is not ours to remove.
	collect func(context.Context) error
	parts   func() map[string]map[string]int64 // nil: it does not tell what images share
	came    func() map[string]time.Time        // nil: it does not tell since when they are here
	ready   func()                             // called when its socket is served, if it is
	run     func(context.Context) error
}

// opening is what a runtime is opened with.
type opening struct {
	config.Config
	version string
	short   bool // of memory
	log     *slog.Logger
}

func openRuntime(ctx context.Context, o opening) (*runtime, error) {
	if o.Endpoint != "" {
		return another(o)
	}
	return embedded(ctx, o, o.Station())
}

// another is the runtime behind a socket.
func another(o opening) (*runtime, error) {
	r, err := remote.Dial(remote.Config{Endpoint: o.Endpoint, Log: o.log})
	if err != nil {
		return nil, err
	}
	return &runtime{Runtime: r, images: r.ImageHandler(), room: r.AskForRoom, run: r.Run}, nil
}

// keepPlace says in the run directory where else the node is, before anything is made there: what is made can be
// removed then by who knows the run directory alone. The driver of another runtime has to be known first.
func keepPlace(p config.Place, log *slog.Logger) {
	if err := p.Save(); err != nil {
		log.Warn("berth purge has to be told where this node is", "error", err)
	}
}

// cgroupDriver is the driver that agent and runtime both use: the groups of pods that one makes are the parents of
// those that the other makes. A runtime that does not answer is asked again; one that does not know the question is
// believed to agree.
func cgroupDriver(ctx context.Context, c config.Config, rt pod.Runtime, log *slog.Logger) (string, error) {
	if c.Endpoint == "" {
		return c.CgroupDriver, nil
	}
	for {
		r, err := rt.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
		switch {
		case err == nil && r.GetLinux() != nil:
			has := strings.ToLower(r.GetLinux().GetCgroupDriver().String())
			if c.CgroupDriver != "" && c.CgroupDriver != has {
				return "", fmt.Errorf("--cgroup-driver %s: the runtime at %s has %s", c.CgroupDriver, c.Endpoint, has)
			}
			return has, nil
		case err == nil || grpcstatus.Code(err) == codes.Unimplemented:
			return c.CgroupDriver, nil
		}
		log.Warn("runtime does not say its cgroup driver", "error", err)
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// embedded is the runtime in this process, which serves others too when it was given a socket.
func embedded(ctx context.Context, o opening, station config.Station) (*runtime, error) {
	keepPlace(o.Place, o.log)
	own := runtimeConfig(o.Config, station, o.log)
	own.OneAtATime = o.short
	s, err := cri.New(ctx, own)
	if err != nil {
		return nil, err
	}
	local := s.Local()
	rt := &runtime{
		Runtime: struct {
			*cri.Server
			*cri.ImageServer
		}{s, s.ImageServer()},
		images: local.ImageHandler(), named: local.TellNamed, room: local.AskForRoom, layers: local.Layers, shed: local.Shed,
		parts: local.ImageParts, came: local.ImagesCame, collect: local.Images().Collect,
	}
	rt.run = func(ctx context.Context) error {
		var asked sync.WaitGroup
		asked.Go(func() { tellHelper(ctx, o.Helper, o.version, o.log) }) // no pod waits for it
		defer asked.Wait()
		if o.CRISocket == "" {
			return s.Run(ctx)
		}
		err := serve.Run(ctx, serve.Config{Socket: o.CRISocket, Runtime: s, Images: s.ImageServer(), Ready: rt.ready, Log: o.log})
		return errors.Join(err, s.Close())
	}
	return rt, nil
}

func runtimeConfig(c config.Config, station config.Station, log *slog.Logger) cri.Config {
	r := placeConfig(c.Place, log)
	network := c.PodNetwork(station)
	told := []any{"network", network.Kind, "reason", network.Why}
	if network.Passed != "" {
		told = append(told, "not-used", network.Passed)
	}
	log.Info("network of pods", told...)
	r.CNIConfDir, r.NeedCNI, r.CNIBinDirs = network.Dir, network.Required, c.CNIBinDirs
	r.CDISpecDirs, r.BlockIOFile = c.CDISpecDirs, c.BlockIOFile
	if c.NRI {
		nri.LogTo(log)
		r.NRI = &nri.Config{
			Socket: c.NRISocketPath(), PluginDir: c.NRIPluginDir, ConfigDir: c.NRIConfigDir,
			RegistrationTimeout: c.NRIRegistration, RequestTimeout: c.NRIRequest,
		}
	}
	r.Images = cri.ImagesConfig{
		RegistryConfigDir: c.RegistryConfigDir, Dir: c.ImageDir, Pinned: c.PinnedImages,
		MaxParallelPulls: c.MaxParallelPulls, MaxRegistryPulls: c.MaxRegistryPulls, PullStallTimeout: c.PullStallTimeout,
	}
	r.HandlersFile, r.ContainerStart = c.HandlersFile, c.ContainerStart
	r.LogMaxSize, r.LogMaxFiles = c.LogMaxSize.Value(), c.LogMaxFiles
	return r
}

func placeConfig(p config.Place, log *slog.Logger) cri.Config {
	return cri.Config{
		RootDir: p.RootDir, RunDir: p.RunDir, LogDir: p.LogDir, CgroupRoot: p.CgroupRoot, CgroupDriver: p.CgroupDriver, Helper: p.Helper,
		BridgeName: p.BridgeName, PodCIDR: p.PodCIDR, Log: log,
	}
}
