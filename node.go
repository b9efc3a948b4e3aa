package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/cli"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cri"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/remote"
	"github.com/berth-node/berth/systemd"
)

func agentCommand(runDir func() string) *cobra.Command {
	flags := config.Default()
	sources := &config.Sources{}
	cmd := &cobra.Command{
		Use: "agent", Short: "Run the node's agent",
		Long: `Run the pods whose manifests are in a directory, until SIGTERM or SIGINT. Pods go on running when the agent ends, however it ends;
the next agent on the same directories takes them over.

Settings come from flags, from the files of --config-dir, from the file of --config, and from the defaults, the first of these the
strongest. SIGHUP reads the files again.

Several agents can run on one machine when they differ in --root-dir, --run-dir, --log-dir, --cgroup-root, --bridge-name and --pod-cidr.`,
		Example: "  berth agent --manifest-dir /etc/kubernetes/manifests\n  berth agent --config /var/lib/kubelet/config.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources.RunDir, sources.Given = runDir(), cmd.Flags()
			l, err := sources.Load()
			if err != nil {
				return err
			}
			return runAgent(cmd.Context(), sources, l)
		},
	}
	sources.AddFlags(cmd.Flags())
	flags.AddFlags(cmd.Flags())
	return cmd
}

func runAgent(ctx context.Context, sources *config.Sources, loaded *config.Loaded) error {
	c := loaded.Config
	if os.Geteuid() != 0 {
		return errors.New("the agent makes namespaces, cgroups and mounts, and must run as root")
	}
	if err := agent.Check(c); err != nil {
		return err
	}
	level := &slog.LevelVar{}
	level.Set(c.Level)
	log := c.LoggerAt(os.Stderr, level)
	short := saveMemory(c.RootDir, log)
	klog.SetSlogLogger(log) // what Kubernetes libraries say goes where everything goes
	if w := loaded.Warning(); w != "" {
		log.Warn(w)
	}
	lock, err := agent.Lock(c.RunDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	notify := systemd.NewNotifier(log)
	settings := newSettings(sources, loaded, level, notify, log)

	rt, err := openRuntime(ctx, c, short, log)
	if err != nil {
		return err
	}
	// It outlives the agent, which uses it to the end. The agent ends when it does.
	runtimeCtx, stopRuntime := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRuntime()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var runtimeEnd errgroup.Group
	runtimeEnd.Go(func() error {
		defer stop()
		return rt.run(runtimeCtx)
	})

	var a *agent.Agent
	if c.CgroupDriver, err = cgroupDriver(ctx, c, rt, log); err == nil {
		a, err = agent.New(agent.Config{
			Config: c, Runtime: rt, Images: rt.images, ImagesNamed: rt.named, Layers: rt.layers, Version: version, Configz: settings.configz, OneAtATime: short, Log: log,
			Ready: func() { notify.Ready("running pods") },
		})
	}
	if err == nil {
		err = runAll(ctx, a, notify, settings)
	}
	notify.Stopping()
	stopRuntime()
	log.Info("agent ends, its pods go on running")
	return errors.Join(err, runtimeEnd.Wait())
}

// runAll runs the agent, what reads its configuration again, and, where systemd asks for it, its watchdog.
func runAll(ctx context.Context, a *agent.Agent, notify *systemd.Notifier, s *settings) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	g.Go(func() error { s.run(ctx, a.Reload); return nil })
	g.Go(func() error { return notify.Watchdog(ctx, a.Alive) })
	return g.Wait()
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
	r.RegistryConfigDir, r.ImageDir, r.MaxParallelPulls = c.RegistryConfigDir, c.ImageDir, c.MaxParallelPulls
	r.MaxRegistryPulls, r.PinnedImages = c.MaxRegistryPulls, c.PinnedImages
	r.PullStallTimeout, r.HandlersFile = c.PullStallTimeout, c.HandlersFile
	r.LogMaxSize, r.LogMaxFiles = c.LogMaxSize.Value(), c.LogMaxFiles
	return r
}

func placeConfig(p config.Place, log *slog.Logger) cri.Config {
	return cri.Config{
		RootDir: p.RootDir, RunDir: p.RunDir, LogDir: p.LogDir, CgroupRoot: p.CgroupRoot, CgroupDriver: p.CgroupDriver, Helper: p.Helper,
		BridgeName: p.BridgeName, PodCIDR: p.PodCIDR, Log: log,
	}
}

func unitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "unit [-- AGENT-FLAG...]", Short: "Print a systemd unit for the agent",
		Example: "  berth unit > /etc/systemd/system/berth.service\n  berth unit -- --manifest-dir /etc/kubernetes/manifests",
		RunE: func(cmd *cobra.Command, args []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), systemd.AgentUnit(exe, args...))
			return err
		},
	}
}

func purgeCommand(runDir func() string) *cobra.Command {
	p := config.Default().Place
	logging := config.Default().Logging
	logging.Level = slog.LevelWarn
	plugins := config.Default().CNIBinDirs
	var endpoints []string
	var yes bool
	cmd := &cobra.Command{
		Use: "purge", Short: "Stop every pod and remove everything this node has made",
		Long: "Stop every pod of the node on these directories and remove everything that it has made: containers, images, volumes, logs, cgroups, the bridge. " +
			"Manifests stay. The agent must have been stopped.\n\nOf another runtime that agents have used, only the pods of this node are removed: images and network are its own. " +
			"Nothing is removed while it does not answer.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.RunDir = runDir()
			if err := p.Complete(); err != nil {
				return err
			}
			if !yes {
				if err := confirm(cmd, p); err != nil {
					return err
				}
			}
			if !cmd.Flags().Changed("runtime") {
				var err error
				if endpoints, err = agent.Runtimes(p.RootDir); err != nil {
					return err
				}
			}
			return purge(cmd.Context(), p, endpoints, plugins, logging.Logger(os.Stderr))
		},
	}
	p.AddFlags(cmd.Flags())
	logging.AddFlags(cmd.Flags())
	cmd.Flags().StringSliceVar(&plugins, "cni-bin-dir", plugins, "directories of CNI plugins, for pods in a network of theirs")
	cmd.Flags().StringSliceVar(&endpoints, "runtime", nil, "sockets of the CRI runtimes whose pods are removed (default those that agents have used; empty: those of the embedded runtime alone)")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask; needed where there is no terminal")
	return cmd
}

// confirm asks whether to go on. Where nobody can be asked the answer is no: a script that means it says so.
func confirm(cmd *cobra.Command, p config.Place) error {
	what := fmt.Sprintf("every pod of %s is stopped and removed, with its images and volumes in %s", p.RunDir, p.RootDir)
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return cli.Usage(fmt.Errorf("nothing was removed: %s, and there is no terminal to ask on whether that is meant; --yes says so", what))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s%s. Go on? [y/N] ", strings.ToUpper(what[:1]), what[1:])
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); err != nil || answer != "y" && answer != "yes" {
		return errors.New("nothing was removed")
	}
	return nil
}

func purge(ctx context.Context, p config.Place, endpoints, plugins []string, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can remove pods")
	}
	lock, err := agent.Lock(p.RunDir)
	if errors.Is(err, agent.ErrRunning) {
		return fmt.Errorf("%w: stop it first", err)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := purgeRuntimes(ctx, p, endpoints, plugins, log); err != nil {
		return err
	}
	if err := agent.Purge(ctx, p, log); err != nil {
		return err
	}
	// A runtime that was killed has left them.
	for _, name := range []string{config.CRISocketName, config.NRISocketName} {
		if err := os.Remove(filepath.Join(p.RunDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove socket: %w", err)
		}
	}
	// The run directory goes last, and stays when there is something in it that nobody here has made.
	if err := os.Remove(filepath.Join(p.RunDir, "lock")); err != nil {
		return fmt.Errorf("remove lock: %w", err)
	}
	if err := os.Remove(p.RunDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("run directory stays", "dir", p.RunDir, "error", err)
	}
	return nil
}

// purgeRuntimes removes the pods of all runtimes that have some. None is touched before all other runtimes have answered.
func purgeRuntimes(ctx context.Context, p config.Place, endpoints, plugins []string, log *slog.Logger) error {
	var others []*remote.Runtime
	for _, endpoint := range endpoints {
		r, err := remote.Dial(remote.Config{Endpoint: endpoint, Log: log})
		if err != nil {
			return err
		}
		defer r.Close()
		if err := answers(ctx, r); err != nil {
			return fmt.Errorf("ask runtime %s, which may have pods of %s: %w; start it, or purge with --runtime= to leave its containers where they are, without their volumes", endpoint, p.RootDir, err)
		}
		others = append(others, r)
	}
	for _, r := range others {
		if err := agent.PurgePods(ctx, r, p); err != nil {
			return err
		}
	}
	if len(others) > 0 && !cri.Used(p.RootDir) {
		return nil
	}
	c := placeConfig(p, log)
	c.CNIBinDirs = plugins // they take down what they have made
	runtime, err := cri.New(ctx, c)
	if err != nil {
		return err
	}
	return runtime.Purge(ctx)
}

func answers(ctx context.Context, r *remote.Runtime) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := r.Version(ctx, &runtimeapi.VersionRequest{})
	return err
}
