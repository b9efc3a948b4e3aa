// Command berth-control is the control plane of a cluster: certificates, etcd and the API server in one process.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/systemd"
)

// version is set by the build.
var version = "dev" // the linker sets it

func main() {
	// What libraries log of connections is no output of a command; the server has its own place for it.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(commandline.Visible(os.Stderr), "berth-control: "+err.Error())
		stop()
		os.Exit(exitCode(err)) // stop has been called
	}
}

// exitCode says what the program ends with after err.
func exitCode(err error) int {
	switch {
	case commandline.IsUsage(err):
		return commandline.ExitUsage
	case apierrors.IsNotFound(err), errors.Is(err, rpctypes.ErrMemberNotFound):
		return commandline.ExitNotFound
	}
	return commandline.ExitFailure
}

// maxFile bounds what is read of a file of the data directory, in bytes. None of them takes a hundredth of it.
const maxFile = 1 << 20

// data is the directory that everything of this control plane is in.
type data struct{ dir string }

func (d data) pki() string        { return filepath.Join(d.dir, "pki") }
func (d data) authority() string  { return filepath.Join(d.pki(), pki.ClusterAuthority+".pem") }
func (d data) trust() string      { return filepath.Join(d.pki(), pki.ClusterAuthority+".crt") }
func (d data) encryption() string { return filepath.Join(d.pki(), "encryption.yaml") }
func (d data) etcd() string       { return filepath.Join(d.dir, "etcd") }
func (d data) begun() string      { return filepath.Join(d.dir, "etcd.begun") }
func (d data) snapshots() string  { return filepath.Join(d.dir, "snapshots") }
func (d data) run() string        { return filepath.Join(d.dir, "run") }
func (d data) lock() string       { return filepath.Join(d.dir, "lock") }
func (d data) state() string      { return filepath.Join(d.dir, "serving.json") }
func (d data) member() string     { return filepath.Join(d.dir, "member.json") }
func (d data) kubeconfig() string { return filepath.Join(d.dir, "admin.kubeconfig") }

func newCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "berth-control",
		Short: "The control plane of a cluster in one process: certificates, etcd and the API server",
		Long: `The control plane of a cluster in one process: certificates, etcd and the API server.

    berth-control serve                        run it; an empty data directory becomes a new cluster
    berth-control kubeconfig > ~/.kube/config  then use kubectl as with any cluster
    berth-control token create --member        print the command that makes another machine a member of the control plane

Exit codes: 0 done, 1 failed, 2 wrong usage, 4 no such pod or member.`,
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	d := &data{}
	c.PersistentFlags().StringVar(&d.dir, "data-dir", systemd.ControlData, "directory of certificates, keys and etcd's data")
	c.AddCommand(newServe(d), newJoin(d), newKubeconfig(d), newToken(d), newCerts(d), newEtcd(d), newUnit(d), newManifest(d), newWhy(d))
	c.AddCommand(tools()...)
	c.CompletionOptions.HiddenDefaultCmd = true
	commandline.MarkUsage(c)
	return c
}

func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, commandline.Usagef("read --log-level %q: it is one of debug, info, warn and error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
