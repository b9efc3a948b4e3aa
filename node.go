package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/systemd"
)

func agentCommand(runDir func() string, version string) *cobra.Command {
	flags := config.Default()
	sources := &config.Sources{}
	await := false
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
			if missing, err := sources.Missing(); err != nil {
				return err
			} else if missing && await {
				return runUntilConfigured(cmd.Context(), sources, version)
			}
			l, err := sources.Load()
			if err != nil {
				return err
			}
			return runAgent(cmd.Context(), sources, l, version)
		},
	}
	cmd.Flags().SetNormalizeFunc(config.KubeletNames)
	sources.AddFlags(cmd.Flags())
	flags.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&await, "await-config", await,
		"while the file of --config is not there, serve the runtime alone, as kubeadm wants before it writes that file; then end, to be "+
			"started again")
	return cmd
}

// runUntilConfigured serves the runtime alone, until the file of the configuration is there.
func runUntilConfigured(ctx context.Context, sources *config.Sources, version string) error {
	l, err := (&config.Sources{RunDir: sources.RunDir, Given: sources.Given}).Load()
	if err != nil {
		return err
	}
	if l.Endpoint != "" {
		return config.AwaitFile(ctx, sources.File) // the runtime is somebody else's to serve
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		defer stop()
		if err := config.AwaitFile(ctx, sources.File); err != nil && ctx.Err() == nil {
			l.Logger(os.Stderr).Error("configuration cannot be waited for", "error", err)
		}
	})
	return runRuntime(ctx, l.Config, version)
}

func runAgent(ctx context.Context, sources *config.Sources, loaded *config.Loaded, version string) error {
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
	short := saveMemory(c.RootDir, c.Profiling, log)
	relaxMonitor(log)
	klog.SetSlogLogger(log) // what Kubernetes libraries say goes where everything goes
	if w := loaded.Warning(); w != "" {
		log.Warn(w)
	}
	unlock, err := lockPlace(c.Place)
	if err != nil {
		return err
	}
	defer unlock()
	notify := systemd.NewNotifier(log)
	settings := newSettings(sources, loaded, level, notify, log)

	rt, err := openRuntime(ctx, opening{Config: c, version: version, short: short, log: log})
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
		if c.Endpoint != "" {
			keepPlace(c.Place, log)
		}
		a, err = agent.New(agent.Config{
			Config: c, Runtime: rt, Images: rt.images, ImagesNamed: rt.named, AskForRoom: rt.room, Layers: rt.layers, Shed: rt.shed, ImageParts: rt.parts, ImagesCame: rt.came, CollectImages: rt.collect, Version: version,
			Configz: settings.configz, OneAtATime: short, Log: log,
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

// lockPlace takes the directories for this process.
func lockPlace(p config.Place) (unlock func(), err error) {
	run, err := agent.Lock(p.RunDir)
	if err != nil {
		return nil, err
	}
	root, err := agent.LockRoot(p.RootDir)
	if err != nil {
		run.Close()
		return nil, err
	}
	return func() {
		root()
		run.Close()
	}, nil
}

// runAll runs the agent, what reads its configuration again, and, where systemd asks for it, its watchdog.
func runAll(ctx context.Context, a *agent.Agent, notify *systemd.Notifier, s *settings) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	g.Go(func() error { s.run(ctx, a.Reload); return nil })
	g.Go(func() error { return notify.Watchdog(ctx, a.Alive) })
	return g.Wait()
}
