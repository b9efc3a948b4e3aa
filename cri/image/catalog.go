package image

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/store"
)

// catalog is which images there are, and by which names.
type catalog struct {
	images  *store.Table[imageRecord] // by ID
	names   *store.Table[nameRecord]  // by complete name
	labels  labels
	layers  *layers
	indexes indexes
	pins    pins
	named   func(names []string)
	log     *slog.Logger

	mu     sync.Mutex          // of who changes an image with its names
	unread map[string][]string // what images need of which nothing but a damaged file is left, by ID
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

func topLayer(r imageRecord) string { return topOf(r.Layers) }

// topOf is the layer that stands on all others; "" when there is none.
func topOf(chain []string) string {
	if len(chain) == 0 {
		return ""
	}
	return chain[len(chain)-1]
}

func (c *catalog) open(db *store.DB) (err error) {
	if c.images, err = store.NewTable[imageRecord](db, "images"); err != nil {
		return err
	}
	if c.names, err = store.NewTable[nameRecord](db, "image-names"); err != nil {
		return err
	}
	return c.recover()
}

// label writes the files of images that have changed. An image without is as good as any while its record lasts.
func (c *catalog) label(ids ...string) {
	for _, id := range ids {
		if err := c.writeLabel(id); err != nil {
			c.log.Warn("image would be lost with the records", "image", id, "error", err)
		}
	}
}

func (c *catalog) writeLabel(id string) error {
	r, err := c.images.Get(id)
	if err != nil {
		return c.labels.remove(id)
	}
	l := labelRecord{ID: id, Image: r, Names: map[string]digest.Digest{}, At: time.Now()}
	for _, name := range c.namesOf(id) {
		if n, err := c.names.Get(name); err == nil {
			l.Names[name] = n.Target
		}
	}
	return c.labels.write(l)
}

// get finds an image by ID, unique prefix of an ID, name or name@digest.
func (c *catalog) get(ref string, as kind) (Image, error) {
	id, err := c.find(ref, as)
	if err != nil {
		return Image{}, err
	}
	r, err := c.images.Get(id)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	return c.image(id, r, c.namesOf(id)), nil
}

func (c *catalog) find(ref string, as kind) (id string, err error) {
	if _, err := c.images.Get(ref); err == nil {
		return ref, nil
	}
	if named, err := reference.ParseDockerRef(ref); err == nil {
		if n, err := c.names.Get(named.String()); err == nil {
			if id, ok := c.behind(n, as); ok {
				return id, nil
			}
			return "", fmt.Errorf("image %q: not as %s: %w", ref, as, ErrNotFound)
		}
	}
	hex := strings.TrimPrefix(ref, "sha256:")
	if hex == "" || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	for have := range c.images.All() {
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

// behind says which image a name stands for. The record of the name has the one that came last; where that is of the
// other kind, and the index that the name stands for offers one of this kind, it is that one, if it is here.
func (c *catalog) behind(n nameRecord, as kind) (id string, ok bool) {
	r, err := c.images.Get(n.ID)
	if err != nil || isModule(r.Config) == (as == module) {
		return n.ID, true
	}
	manifest, ok := c.indexes.offered(n.Target, as)
	if !ok || manifest == r.Manifest {
		return n.ID, true
	}
	for id, r := range c.images.All() {
		if r.Manifest == manifest {
			return id, true
		}
	}
	return "", false
}

// target is what a name points to in its registry, as far as is known here.
func (c *catalog) target(named reference.Named) (digest.Digest, bool) {
	n, err := c.names.Get(named.String())
	return n.Target, err == nil && n.Target != ""
}

// at finds the image that a name stands for, if the name points to target and the image is here as a whole.
func (c *catalog) at(named reference.Named, target digest.Digest, as kind) (Image, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.names.Get(named.String())
	if err != nil || n.Target != target {
		return Image{}, false
	}
	id, ok := c.behind(n, as)
	if !ok {
		return Image{}, false // there is another under the same name
	}
	r, err := c.images.Get(id)
	if err != nil || !c.layers.carry(topLayer(r)) {
		return Image{}, false
	}
	return c.image(id, r, c.namesOf(id)), true
}

// namesOf returns the names of an image in order.
func (c *catalog) namesOf(id string) []string {
	var names []string
	for name, n := range c.names.All() {
		if n.ID == id {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *catalog) image(id string, r imageRecord, names []string) Image {
	i := Image{
		ID: id, ManifestDigest: r.Manifest.String(), TopLayer: topLayer(r), Config: r.Config,
		Pinned: c.pins.has(id, names), PulledAt: r.PulledAt, Size: r.Bytes + c.layers.size(r.Layers),
	}
	for _, n := range names {
		if strings.Contains(n, "@") {
			i.Digests = append(i.Digests, n)
		} else {
			i.Tags = append(i.Tags, n)
		}
	}
	return i
}

// list returns all images, in the order of their IDs.
func (c *catalog) list() []Image {
	names := map[string][]string{}
	for name, n := range c.names.All() {
		names[n.ID] = append(names[n.ID], name)
	}
	var all []Image
	for id, r := range c.images.All() {
		slices.Sort(names[id])
		all = append(all, c.image(id, r, names[id]))
	}
	slices.SortFunc(all, func(a, b Image) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// haveAll says whether all of the images are here.
func (c *catalog) haveAll(ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool {
		_, err := c.images.Get(id)
		return err != nil
	})
}

// put makes an image of layers that are all there, and points names to it. Its layers and content are leased.
func (c *catalog) put(id string, r imageRecord, names map[string]digest.Digest) (Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.layers.carry(topLayer(r)) {
		return Image{}, fmt.Errorf("record image %s: its layers were removed meanwhile", id)
	}
	if old, err := c.images.Get(id); err == nil {
		r.Content = slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Content, old.Content))))
		r.Manifest = cmp.Or(r.Manifest, old.Manifest)
	}
	r.Bytes = c.indexes.content.size(r.Content)
	r.Config.History = nil
	if err := c.images.Put(id, r); err != nil {
		return Image{}, fmt.Errorf("record image %s: %w", id, err)
	}
	changed := []string{id}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if old, err := c.names.Get(name); err == nil && old.ID != id && !slices.Contains(changed, old.ID) {
			changed = append(changed, old.ID)
		}
		if err := c.names.Put(name, nameRecord{ID: id, Target: names[name]}); err != nil {
			return Image{}, fmt.Errorf("record image %s: %w", id, err)
		}
	}
	c.label(changed...)
	delete(c.unread, id)
	if c.named != nil {
		c.named(slices.Collect(maps.Keys(names)))
	}
	return c.image(id, r, c.namesOf(id)), nil
}

// remove forgets the image that ref names, with all its names, and returns what it stood on.
func (c *catalog) remove(ref string, as kind) (imageRecord, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, err := c.find(ref, as)
	if err != nil {
		return imageRecord{}, err
	}
	r, err := c.images.Get(id)
	if err != nil {
		return r, fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	if err := c.forget(id); err != nil {
		return r, fmt.Errorf("remove image %q: %w", ref, err)
	}
	return r, nil
}

func (c *catalog) forget(id string) error {
	// What it would be found again by goes first.
	if err := c.labels.remove(id); err != nil {
		return err
	}
	// Then the names: an image without a name can be removed again, a name without an image means nothing.
	for _, name := range c.namesOf(id) {
		if err := c.names.Delete(name); err != nil {
			return err
		}
	}
	return c.images.Delete(id)
}
