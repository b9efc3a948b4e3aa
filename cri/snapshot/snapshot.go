// Package snapshot keeps the file trees of images and containers: one snapshot a layer, shared by every image that has
// it, and a writable one for each container. [NewOverlay] stacks them with OverlayFS; [NewNative] copies, for
// filesystems that cannot.
//
// The life of a layer: Begin gives an empty (or, natively, a copied) directory, the caller fills it, Commit makes it a
// snapshot that never changes again. The life of a container's snapshot: Prepare, mount what it returns, unmount,
// Remove. A crash between any two system calls leaves at most a directory that no record explains; Clean removes those.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/berth-node/berth/cri/store"
)

var (
	// ErrExists says that a layer of that key is committed already.
	ErrExists = errors.New("snapshot exists")
	// ErrInUse says that another snapshot stands on this one.
	ErrInUse = errors.New("snapshot is in use")
	// ErrNotFound says that there is no snapshot of that key, or that a layer below it is missing.
	ErrNotFound = errors.New("snapshot not found")
	// ErrUnsupported says that the kernel or the filesystem cannot do what an implementation needs.
	ErrUnsupported = errors.New("not supported here")
)

// Kind is what a snapshot is for.
type Kind string

// The kinds of snapshots.
const (
	KindLayer  Kind = "layer"  // committed, never changes
	KindActive Kind = "active" // writable, of one container
	KindView   Kind = "view"   // read-only look at a layer
)

// Info describes one snapshot. Dir is where its own files are; empty for a view.
type Info struct {
	Key    string
	Parent string
	Kind   Kind
	Dir    string
}

// Usage is what a snapshot takes by itself, without what it stands on.
type Usage struct {
	Bytes  uint64
	Inodes uint64
}

// Whiteouts says how the deletions a layer archive asks for are written into [Layer.Dir].
type Whiteouts int

const (
	// WhiteoutsOverlay: a deleted file is a character device 0/0, an opaque directory has the xattr
	// trusted.overlay.opaque=y. Other trusted.overlay.* xattrs of an archive must not be written.
	WhiteoutsOverlay Whiteouts = iota
	// WhiteoutsApply: the directory holds the files of the parent; what is deleted is deleted there and then.
	WhiteoutsApply
)

// Layer is a directory being filled. One of Commit and Abort ends it; what is left by a crash, Clean removes.
type Layer interface {
	Dir() string
	Whiteouts() Whiteouts
	// Merged is a directory that shows the layer on top of all below it, which are there; what is done in it is done to
	// the layer, and deletions are made in place. It is there until done is called, and the crash of the process ends
	// it too.
	Merged() (dir string, done func() error, err error)
	// Commit makes the layer a snapshot. When another has committed the same key meanwhile, this one is dropped without
	// an error: the key is a digest, so both are the same.
	Commit(ctx context.Context) error
	// Abort drops the layer. It does nothing after Commit.
	Abort() error
}

// Snapshotter is safe for concurrent use.
type Snapshotter interface {
	// Name is "overlay" or "native".
	Name() string
	// Independent says that a layer may be filled and committed before its parent is there.
	Independent() bool
	// Begin starts the layer key (a chain ID) on parent ("" for the lowest); ErrExists when it is committed already.
	// Several may fill one key at once, each in a directory of its own.
	Begin(ctx context.Context, key, parent string) (Layer, error)
	// Exists says that the layer and all below it are committed.
	Exists(key string) bool
	// Prepare makes the writable snapshot key (a container ID) on the layer parent and returns how to mount it.
	// Asked again for the same key, it returns the same.
	Prepare(ctx context.Context, key, parent string) ([]Mount, error)
	// View is Prepare, read-only.
	View(ctx context.Context, key, parent string) ([]Mount, error)
	// Remove drops a snapshot; the caller has unmounted it. It is fast, since the files are deleted in the background.
	// No error when there is none; ErrInUse when another snapshot stands on it.
	Remove(ctx context.Context, key string) error
	// Usage of a layer is counted once and remembered; of an active snapshot it is counted again by each call. With
	// an error it is what could be counted.
	Usage(ctx context.Context, key string) (Usage, error)
	// Diff writes what was changed and added in an active snapshot as a tar archive without whiteouts, and returns what
	// was deleted of the layers below, as absolute paths inside. The snapshot may be in use.
	Diff(ctx context.Context, key string, w io.Writer) (deleted []string, err error)
	// List returns all snapshots in the order of their keys.
	List() []Info
	// Sync makes all committed layers survive a power cut. It happens by itself soon after a Commit; a layer that was
	// not synced before the machine stopped does not exist any more afterwards.
	Sync(ctx context.Context) error
	// Clean removes what a crash left: unfinished layers, directories without a record, mounts of those. To be called
	// at start, before anything else. The files are deleted in the background, since there may be millions.
	Clean(ctx context.Context) error
	// Swept waits until the background has deleted what it can, and returns what it could not, which it tries again
	// once in a while.
	Swept(ctx context.Context) error
}

// New returns the overlay snapshotter where kernel and filesystem can do it, else the native one, with a warning.
func New(root string, db *store.DB, log *slog.Logger) (Snapshotter, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s, err := NewOverlay(root, db, log)
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, ErrUnsupported) {
		return nil, err
	}
	log.Warn("layers are copied for each container, because overlay mounts do not work here: starts are slow and take disk space",
		"root", root, "error", err)
	if s, err = NewNative(root, db, log); err != nil {
		return nil, fmt.Errorf("open native snapshots: %w", err)
	}
	return s, nil
}
