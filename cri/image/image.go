// Package image pulls, imports, unpacks, lists and removes container images.
//
// The order of things makes a kill -9 harmless at any line: a layer is a snapshot once it is unpacked and verified, an
// image is a record once all its layers are, and a name is a record of its own that points to an image. What was begun
// and never got a record is either continued by the next pull of the same content or removed by [Store.Collect].
package image

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/registry"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/store"
)

// ErrNotFound says that no image has that name or ID.
var ErrNotFound = errors.New("image not found")

// Config of a [Store]. Root, DB and Snapshots are required.
type Config struct {
	Root              string // directory of its own, for content by digest
	DB                *store.DB
	Snapshots         snapshot.Snapshotter
	RegistryConfigDir string               // hosts.toml files in containerd's layout; "" = none
	Archives          string               // directory whose archives ImportArchives imports; "" = none
	Pinned            []string             // names of images that garbage collection leaves, * in them for anything
	MaxParallel       int                  // layers fetched at a time, of all pulls; 0 = 6
	MaxPerRegistry    int                  // and from one registry; 0 = MaxParallel
	StallTimeout      time.Duration        // a connection without a byte for so long is given up; 0 = 1 minute
	MaxFill           float64              // share of the free space (and inodes) one pull or import may fill; 0 = 0.9
	KeepPartial       time.Duration        // what a failed pull got is left so long, for a retry; 0 = 10 minutes
	Platform          *ocispec.Platform    // nil = this machine's
	Named             func(names []string) // of names that have an image now; returns quickly and asks nothing of it
	Log               *slog.Logger
}

// Image is one image that is here, unpacked.
type Image struct {
	ID             string   // digest of the configuration
	Tags           []string // repository:tag, complete ("docker.io/library/busybox:latest")
	Digests        []string // repository@digest, complete
	ManifestDigest string   // of the platform's manifest; "" when it was imported without one
	Size           int64    // bytes its layers take on disk
	TopLayer       string   // chain ID: the key of its snapshot
	Config         ocispec.Image
	Pinned         bool // not to be garbage collected
	PulledAt       time.Time
}

// User splits the user the image asks for into its user and group parts, names or numbers; "" is root.
func (i Image) User() (user, group string) {
	user, group, _ = strings.Cut(i.Config.Config.User, ":")
	return user, group
}

// Labels of the image.
func (i Image) Labels() map[string]string { return i.Config.Config.Labels }

// StopSignal is the signal to stop the image's process with, by name or number; "" = SIGTERM.
func (i Image) StopSignal() string { return i.Config.Config.StopSignal }

// Entrypoint is the start of the command line, which a container's command replaces.
func (i Image) Entrypoint() []string { return i.Config.Config.Entrypoint }

// Cmd is the rest of the command line, which a container's arguments replace.
func (i Image) Cmd() []string { return i.Config.Config.Cmd }

// Env is the environment, as NAME=value.
func (i Image) Env() []string { return i.Config.Config.Env }

// WorkingDir of the image's process; "" = /.
func (i Image) WorkingDir() string { return i.Config.Config.WorkingDir }

// Volumes are the paths that get a volume of their own, in order.
func (i Image) Volumes() []string { return slices.Sorted(maps.Keys(i.Config.Config.Volumes)) }

// Names are the tags, then the digests.
func (i Image) Names() []string { return slices.Concat(i.Tags, i.Digests) }

// Phase is what is being done with a layer or an image.
type Phase string

// The phases of a pull, in order.
const (
	Resolving   Phase = "resolving"
	Downloading Phase = "downloading"
	Unpacking   Phase = "unpacking"
	Done        Phase = "done"
)

// Progress tells how far a pull or an import is. It is for one layer, or for the whole image where Layer is empty.
type Progress struct {
	Ref   string
	Layer string // digest
	Phase Phase
	Done  int64 // bytes
	Total int64 // bytes; 0 = not known
}

// Auth is what a registry is shown.
type Auth = registry.Auth
