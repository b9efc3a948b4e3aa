package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berth-node/berth/cri/image/registry"
	"github.com/berth-node/berth/cri/store"
)

// Store is the images of this node. It is safe for concurrent use.
type Store struct {
	images    *catalog
	layers    *layers
	pulls     *pulls
	importer  *importer
	collector *collector
	unpacker  *unpacker
}

// Open opens the store.
func Open(c Config) (*Store, error) {
	if c.Root == "" || c.DB == nil || c.Snapshots == nil {
		return nil, errors.New("open images: directory, records and snapshots are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxParallel = cmp.Or(c.MaxParallel, 6)
	c.MaxPerRegistry = cmp.Or(c.MaxPerRegistry, c.MaxParallel)
	c.MaxFill = cmp.Or(c.MaxFill, 0.9)
	c.KeepPartial = cmp.Or(c.KeepPartial, 10*time.Minute)
	s, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	return s, nil
}

func open(c Config) (*Store, error) {
	machine := platforms.Default()
	if c.Platform != nil {
		machine = platforms.Only(*c.Platform)
	}
	pinned, err := parsePins(c.Pinned)
	if err != nil {
		return nil, err
	}
	archives, err := store.NewTable[archiveRecord](c.DB, "image-archives")
	if err != nil {
		return nil, err
	}
	layers := &layers{snaps: c.Snapshots, news: make(chan struct{})}
	if layers.records, err = store.NewTable[layerRecord](c.DB, "image-layers"); err != nil {
		return nil, err
	}
	content, leases := openContent(c.Root, c.Log), newLeases()
	images := &catalog{
		labels: labels{dir: filepath.Join(c.Root, "images"), content: content}, layers: layers,
		indexes: indexes{content: content, machine: machine}, pins: pins{names: pinned, archives: archives, dir: c.Archives},
		named: c.Named, log: c.Log,
	}
	if err := images.open(c.DB); err != nil {
		return nil, err
	}
	u := &unpacker{layers: layers, leases: leases, slots: newSlots(c.MaxParallel, c.MaxPerRegistry), maxFill: c.MaxFill, log: c.Log}
	col := &collector{images: images, layers: layers, content: content, leases: leases, keepPartial: c.KeepPartial}
	return &Store{
		images: images, layers: layers, unpacker: u, collector: col,
		pulls: &pulls{
			registry: registry.New(registry.Config{HostsDir: c.RegistryConfigDir, StallTimeout: c.StallTimeout, Log: c.Log}),
			images:   images, content: content, leases: leases, unpacker: u, collector: col, machine: machine, log: c.Log,
		},
		importer: &importer{
			images: images, content: content, leases: leases, unpacker: u, machine: machine,
			archives: archives, dir: c.Archives, maxFill: c.MaxFill, log: c.Log,
		},
	}, nil
}

// Close gives up what is under way and waits for its end.
func (s *Store) Close() error {
	s.pulls.flights.close()
	s.unpacker.flights.close()
	return nil
}

// ParseName completes a name as Docker does: busybox is docker.io/library/busybox:latest, and of a name with both a tag
// and a digest, the digest counts.
func ParseName(name string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, fmt.Errorf("read image name %q: %w", name, err)
	}
	return named, nil
}

// kind is what an image is wanted for.
type kind string

const (
	program kind = "program"
	module  kind = "module"
)

// Get finds an image by ID, unique prefix of an ID, name or name@digest; [ErrNotFound] when there is none.
func (s *Store) Get(ref string) (Image, error) { return s.images.get(ref, program) }

// GetModule is Get for who runs WebAssembly, as [Store.PullModule] is Pull.
func (s *Store) GetModule(ref string) (Image, error) { return s.images.get(ref, module) }

// List returns all images, in the order of their IDs.
func (s *Store) List() []Image { return s.images.list() }

// Usage is what all images take on disk, each layer counted once.
func (s *Store) Usage() (bytes, inodes uint64, err error) {
	for _, r := range s.images.images.All() {
		bytes += uint64(r.Bytes)
		inodes += uint64(len(r.Content))
	}
	for _, l := range s.layers.records.All() {
		bytes += l.Bytes
		inodes += l.Inodes
	}
	return bytes, inodes, nil
}

// Parts are the bytes of what each image is made of: by its ID, and by a key that images have in common which share a
// part.
func (s *Store) Parts() map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	for id, r := range s.images.images.All() {
		parts := map[string]int64{}
		for _, l := range r.Layers {
			parts[layerKey(l)] = s.layers.size([]string{l})
		}
		for _, d := range r.Content {
			parts[d.String()] = s.collector.content.size([]digest.Digest{d})
		}
		out[id] = parts
	}
	return out
}

// Came says since when images are here, by ID.
func (s *Store) Came() map[string]time.Time {
	out := map[string]time.Time{}
	for id, r := range s.images.images.All() {
		out[id] = r.PulledAt
	}
	return out
}

// Pull brings the image ref here. Pulls of one name with the same credentials are one; it goes on as long as one of its
// callers waits. progress may be nil; it is called a few times a second at most, never twice at once, and must not
// block.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth, progress func(Progress)) (Image, error) {
	return s.pulls.pull(ctx, ref, program, auth, progress)
}

// PullModule is Pull for who runs WebAssembly: where a name stands for several images, one that is a module comes
// first, then what this machine runs itself.
func (s *Store) PullModule(ctx context.Context, ref string, auth *Auth, progress func(Progress)) (Image, error) {
	return s.pulls.pull(ctx, ref, module, auth, progress)
}

// Import reads an archive of docker save or in the OCI layout, packed with gzip, zstd or nothing, and returns the
// images in it that are for this machine. An unpacked archive in a file is read in place; anything else goes through a
// file without a name first, because its table of contents may be its last entry. progress is as for [Store.Pull].
func (s *Store) Import(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	return s.importer.read(ctx, r, progress)
}

// ImportArchives imports every archive in the directory for them that has not been imported yet, has changed since, or
// whose images were removed; but none of those done, to which it adds. One that cannot be read does not keep the others
// back.
func (s *Store) ImportArchives(ctx context.Context, done map[string]bool) error {
	return s.importer.readDir(ctx, done)
}

// Remove removes the image that ref names (as for [Store.Get]) with all its names. Layers that other images or
// containers still stand on stay.
func (s *Store) Remove(ctx context.Context, ref string) error {
	return s.collector.remove(ctx, ref, program)
}

// RemoveModule is Remove for who runs WebAssembly, as [Store.PullModule] is Pull.
func (s *Store) RemoveModule(ctx context.Context, ref string) error {
	return s.collector.remove(ctx, ref, module)
}

// Collect removes what no image explains: content, layers, and what pulls that failed have left, once it is too old to
// be continued.
func (s *Store) Collect(ctx context.Context) error { return s.collector.collect(ctx) }
