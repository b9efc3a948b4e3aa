package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cri"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/remote"
	"github.com/berth-node/berth/cri/serve"
	"github.com/berth-node/berth/internal/commandline"
)

func purgeCommand(runDir func() string) *cobra.Command {
	p := config.Default().Place
	logging := config.Default().Logging
	logging.Level = slog.LevelWarn
	plugins, storage := config.Default().CNIBinDirs, config.Default().CSI.Local
	var endpoints []string
	var yes bool
	cmd := &cobra.Command{
		Use: "purge", Short: "Stop every pod and remove everything this node has made",
		Long: "Stop every pod of the node on these directories and remove everything that it has made: containers, images, volumes, logs, cgroups, the bridge. " +
			"Manifests stay. The agent must have been stopped. Directories that are not given are those that the agent of the run directory had last.\n\nOf another runtime that agents have used, only the pods of this node are removed: images and network are its own. " +
			"Nothing is removed while it does not answer.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.RunDir = runDir()
			switch err := p.Recall(cmd.Flags()); {
			case err == nil, errors.Is(err, fs.ErrNotExist), cmd.Flags().Changed("root-dir"):
			default:
				return fmt.Errorf("%w; --root-dir says which it is", err)
			}
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
			return purge(cmd.Context(), p, storage, endpoints, plugins, logging.Logger(os.Stderr))
		},
	}
	p.AddFlags(cmd.Flags())
	storage.AddFlags(cmd.Flags())
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
		return commandline.Usage(fmt.Errorf("nothing was removed: %s, and there is no terminal to ask on whether that is meant; --yes says so", what))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s%s. Go on? [y/N] ", strings.ToUpper(what[:1]), what[1:])
	if !agreed(cmd.Context(), os.Stdin) {
		if cmd.Context().Err() != nil {
			fmt.Fprintln(cmd.ErrOrStderr()) // the question's line is not ended by an answer
		}
		return errors.New("nothing was removed")
	}
	return nil
}

// agreed reads the answer to a question. Who interrupts the command has given one: reading goes on, since nothing ends
// it, and ends with the process.
func agreed(ctx context.Context, in io.Reader) bool {
	answer := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil {
			line = ""
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return false
	case said := <-answer:
		return said == "y" || said == "yes"
	}
}

func purge(ctx context.Context, p config.Place, storage config.LocalCSI, endpoints, plugins []string, log *slog.Logger) error {
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
	unlock, err := agent.LockRoot(p.RootDir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := purgeRuntimes(ctx, p, endpoints, plugins, log); err != nil {
		return err
	}
	if err := agent.Purge(ctx, p, storage, log); err != nil {
		return err
	}
	// A runtime that was killed has left them.
	for _, name := range []string{config.CRISocketName, serve.Private(config.CRISocketName), config.NRISocketName, nri.Own(config.NRISocketName)} {
		if err := os.RemoveAll(filepath.Join(p.RunDir, name)); err != nil {
			return fmt.Errorf("remove socket: %w", err)
		}
	}
	if plugins := (&config.Config{Place: p}).NRISocketPath(); filepath.Dir(plugins) != filepath.Clean(p.RunDir) {
		if err := nri.Clear(plugins); err != nil {
			return err
		}
	}
	// The run directory goes last, and stays when there is something in it that nobody here has made. Until then it
	// says where all else is, for who tries again.
	for _, name := range []string{config.PlaceFile, config.PlaceFile + ".new"} {
		if err := os.Remove(filepath.Join(p.RunDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove where the node is: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(p.RunDir, "lock")); err != nil {
		return fmt.Errorf("remove lock: %w", err)
	}
	if err := os.Remove(p.RunDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("run directory stays", "dir", p.RunDir, "error", err)
	}
	return nil
}

// purgeRuntimes removes the pods of all runtimes that have some. None is touched before all other runtimes have
// answered.
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
	return runtime.Local().Purge(ctx)
}

func answers(ctx context.Context, r *remote.Runtime) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := r.Version(ctx, &runtimeapi.VersionRequest{})
	return err
}
