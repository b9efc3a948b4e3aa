package image

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/registry"
	"github.com/berth-node/berth/cri/store"
)

// Store is the images of this node. It is safe for concurrent use.
type Store struct {
	cfg      Config
	log      *slog.Logger
	content  *content
	registry *registry.Client
	platform platforms.MatchComparer
	pins     []*regexp.Regexp

	images   *store.Table[imageRecord]   // by ID
	names    *store.Table[nameRecord]    // by complete name
	layers   *store.Table[layerRecord]   // by chain ID
	archives *store.Table[archiveRecord] // by path

	pulls   flights[Image]
	unpacks flights[struct{}]
	slots   *slots

	mu     sync.Mutex
	leases map[string]int // digests and chain IDs that something under way needs
	news   chan struct{}  // closed when there is a new layer
}

// imageRecord is written when all its layers are there.
type imageRecord struct {
	Manifest digest.Digest   `json:",omitempty"`
	Content  []digest.Digest // kept blobs: index, manifest, configuration
	Bytes    int64           // of those
	Layers   []string        // chain IDs, the lowest first
	Config   ocispec.Image   // without history
	PulledAt time.Time
}

// nameRecord is where a tag or a digest points. Target is the manifest or index the registry has under that name.
type nameRecord struct {
	ID     string
	Target digest.Digest `json:",omitempty"`
}

// layerRecord keeps what a layer takes, so that nobody has to walk it.
type layerRecord struct {
	Bytes, Inodes uint64
	Made          time.Time
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
	s := &Store{
		cfg: c, log: c.Log, leases: map[string]int{}, news: make(chan struct{}), slots: newSlots(c.MaxParallel, c.MaxPerRegistry),
		platform: platforms.Default(),
		registry: registry.New(registry.Config{HostsDir: c.RegistryConfigDir, StallTimeout: c.StallTimeout, Log: c.Log}),
	}
	if c.Platform != nil {
		s.platform = platforms.Only(*c.Platform)
	}
	err := s.readPins()
	if err == nil {
		err = s.openTables(c.DB)
	}
	if err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	s.content = openContent(c.Root, c.Log)
	if err := s.recover(); err != nil {
		return nil, err
	}
	return s, s.findAgain()
}

func (s *Store) openTables(db *store.DB) (err error) {
	if s.images, err = store.NewTable[imageRecord](db, "images"); err != nil {
		return err
	}
	if s.names, err = store.NewTable[nameRecord](db, "image-names"); err != nil {
		return err
	}
	if s.layers, err = store.NewTable[layerRecord](db, "image-layers"); err != nil {
		return err
	}
	s.archives, err = store.NewTable[archiveRecord](db, "image-archives")
	return err
}

// recover drops images whose layers did not survive a power cut, and names that point nowhere.
func (s *Store) recover() error {
	for id, r := range s.images.All() {
		if top := topLayer(r); top != "" && !s.cfg.Snapshots.Exists(top) {
			s.log.Warn("image is lost and must be pulled again", "image", id)
			if err := s.images.Delete(id); err != nil {
				return fmt.Errorf("open images: %w", err)
			}
			if err := s.removeLabel(id); err != nil {
				s.log.Warn("file of an image is not removed", "image", id, "error", err)
			}
		}
	}
	for name, n := range s.names.All() {
		if _, err := s.images.Get(n.ID); err != nil {
			if err := s.names.Delete(name); err != nil {
				return fmt.Errorf("open images: %w", err)
			}
		}
	}
	return nil
}

// Close gives up what is under way and waits for its end.
func (s *Store) Close() error {
	s.pulls.close()
	s.unpacks.close()
	return nil
}

func topLayer(r imageRecord) string {
	if len(r.Layers) == 0 {
		return ""
	}
	return r.Layers[len(r.Layers)-1]
}

// ParseName completes a name as Docker does: busybox is docker.io/library/busybox:latest, and of a name with both a tag and
// a digest, the digest counts.
func ParseName(name string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, fmt.Errorf("read image name %q: %w", name, err)
	}
	return named, nil
}

// Get finds an image by ID, unique prefix of an ID, name or name@digest; [ErrNotFound] when there is none.
func (s *Store) Get(ref string) (Image, error) { return s.getAs(ref, program) }

// GetModule is Get for who runs WebAssembly, as [Store.PullModule] is Pull.
func (s *Store) GetModule(ref string) (Image, error) { return s.getAs(ref, module) }

func (s *Store) getAs(ref string, as kind) (Image, error) {
	id, err := s.find(ref, as)
	if err != nil {
		return Image{}, err
	}
	r, err := s.images.Get(id)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	return s.image(id, r, s.namesOf(id)), nil
}

func (s *Store) find(ref string, as kind) (id string, err error) {
	if _, err := s.images.Get(ref); err == nil {
		return ref, nil
	}
	if named, err := reference.ParseDockerRef(ref); err == nil {
		if n, err := s.names.Get(named.String()); err == nil {
			if id, ok := s.behind(n, as); ok {
				return id, nil
			}
			return "", fmt.Errorf("image %q: not as %s: %w", ref, as, ErrNotFound)
		}
	}
	hex := strings.TrimPrefix(ref, "sha256:")
	if hex == "" || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	for have := range s.images.All() {
		if strings.HasPrefix(strings.TrimPrefix(have, "sha256:"), hex) {
			if id != "" {
				return "", fmt.Errorf("image %q: several IDs begin so: %w", ref, ErrNotFound)
			}
			id = have
		}
	}
	if id == "" {
		return "", fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	return id, nil
}

// behind says which image a name stands for. The record of the name has the one that came last; where that is of the other kind, and the
// index that the name stands for offers one of this kind, it is that one, if it is here.
func (s *Store) behind(n nameRecord, as kind) (id string, ok bool) {
	r, err := s.images.Get(n.ID)
	if err != nil || isModule(r.Config) == (as == module) {
		return n.ID, true
	}
	manifest, ok := s.offered(n.Target, as)
	if !ok || manifest == r.Manifest {
		return n.ID, true
	}
	for id, r := range s.images.All() {
		if r.Manifest == manifest {
			return id, true
		}
	}
	return "", false
}

// namesOf returns the names of an image in order.
func (s *Store) namesOf(id string) []string {
	var names []string
	for name, n := range s.names.All() {
		if n.ID == id {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *Store) image(id string, r imageRecord, names []string) Image {
	i := Image{
		ID: id, ManifestDigest: r.Manifest.String(), TopLayer: topLayer(r), Config: r.Config,
		Pinned: s.pinned(id, names), PulledAt: r.PulledAt, Size: r.Bytes,
	}
	for _, n := range names {
		if strings.Contains(n, "@") {
			i.Digests = append(i.Digests, n)
		} else {
			i.Tags = append(i.Tags, n)
		}
	}
	for _, l := range r.Layers {
		if rec, err := s.layers.Get(l); err == nil {
			i.Size += int64(rec.Bytes)
		}
	}
	return i
}

// List returns all images, in the order of their IDs.
func (s *Store) List() []Image {
	names := map[string][]string{}
	for name, n := range s.names.All() {
		names[n.ID] = append(names[n.ID], name)
	}
	var all []Image
	for id, r := range s.images.All() {
		slices.Sort(names[id])
		all = append(all, s.image(id, r, names[id]))
	}
	slices.SortFunc(all, func(a, b Image) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Usage is what all images take on disk, each layer counted once.
func (s *Store) Usage() (bytes, inodes uint64, err error) {
	for _, r := range s.images.All() {
		bytes += uint64(r.Bytes)
		inodes += uint64(len(r.Content))
	}
	for _, l := range s.layers.All() {
		bytes += l.Bytes
		inodes += l.Inodes
	}
	return bytes, inodes, nil
}

// record makes an image of layers that are all there, and points names to it.
func (s *Store) record(id string, r imageRecord, names map[string]digest.Digest) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if top := topLayer(r); top != "" && !s.cfg.Snapshots.Exists(top) {
		return Image{}, fmt.Errorf("record image %s: its layers were removed meanwhile", id)
	}
	if old, err := s.images.Get(id); err == nil {
		r.Content = slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Content, old.Content))))
		r.Manifest = cmp.Or(r.Manifest, old.Manifest)
	}
	r.Bytes = s.content.size(r.Content)
	r.Config.History = nil
	if err := s.images.Put(id, r); err != nil {
		return Image{}, fmt.Errorf("record image %s: %w", id, err)
	}
	changed := []string{id}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if old, err := s.names.Get(name); err == nil && old.ID != id && !slices.Contains(changed, old.ID) {
			changed = append(changed, old.ID)
		}
		if err := s.names.Put(name, nameRecord{ID: id, Target: names[name]}); err != nil {
			return Image{}, fmt.Errorf("record image %s: %w", id, err)
		}
	}
	s.relabel(changed...)
	if s.cfg.Named != nil {
		s.cfg.Named(slices.Collect(maps.Keys(names)))
	}
	return s.image(id, r, s.namesOf(id)), nil
}
