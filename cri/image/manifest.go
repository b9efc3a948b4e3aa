package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/registry"
)

const (
	// maxLayers is how many OverlayFS can stack.
	maxLayers = 500
	maxConfig = 8 << 20
	// maxNested is how deep indexes may lie in each other.
	maxNested = 3
)

// ErrInvalid says that an image is not as the specification wants it.
var ErrInvalid = errors.New("invalid image")

var errPlatform = errors.New("image is not made for this machine")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// document is a manifest or an index, of Docker or OCI.
type document struct {
	SchemaVersion int                   `json:"schemaVersion"`
	MediaType     string                `json:"mediaType"`
	Config        *ocispec.Descriptor   `json:"config"`
	Layers        []ocispec.Descriptor  `json:"layers"`
	Manifests     *[]ocispec.Descriptor `json:"manifests"`
	FSLayers      json.RawMessage       `json:"fsLayers"`
}

func (d document) isIndex() bool { return d.Manifests != nil }

// parseDocument reads a manifest or an index that came with a media type, which may be empty.
func parseDocument(mediaType string, body []byte) (document, error) {
	var d document
	if err := json.Unmarshal(body, &d); err != nil {
		return d, invalid("read manifest: %v", err)
	}
	if d.SchemaVersion == 1 || d.FSLayers != nil {
		return d, invalid("manifest of schema 1, which registries have not made since 2016")
	}
	// A body that can be read as both is how one digest shows different images to different clients.
	if d.isIndex() && (d.Config != nil || d.Layers != nil) {
		return d, invalid("manifest and index at once")
	}
	for _, t := range []string{d.MediaType, mediaType} {
		index := t == ocispec.MediaTypeImageIndex || t == registry.DockerList
		manifest := t == ocispec.MediaTypeImageManifest || t == registry.DockerManifest
		if index && !d.isIndex() || manifest && d.isIndex() {
			return d, invalid("its media type is %s, its content is not", t)
		}
	}
	if d.isIndex() {
		for _, m := range *d.Manifests {
			if err := checkDescriptor(m, registry.MaxManifest); err != nil {
				return d, err
			}
		}
		return d, nil
	}
	return d, checkManifest(d)
}

func checkManifest(d document) error {
	if d.Config == nil {
		return invalid("manifest without a configuration")
	}
	if err := checkDescriptor(*d.Config, maxConfig); err != nil {
		return err
	}
	switch d.Config.MediaType {
	case ocispec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json", "application/octet-stream", "":
	default:
		return invalid("it is not of a container, but %q", d.Config.MediaType)
	}
	if len(d.Layers) > maxLayers {
		return invalid("%d layers, at most %d can be stacked", len(d.Layers), maxLayers)
	}
	for _, l := range d.Layers {
		if err := checkDescriptor(l, 1<<50); err != nil {
			return err
		}
		if strings.HasSuffix(l.MediaType, "+encrypted") {
			return invalid("layer %s is encrypted", l.Digest)
		}
	}
	return nil
}

func checkDescriptor(d ocispec.Descriptor, limit int64) error {
	if err := d.Digest.Validate(); err != nil {
		return invalid("digest %q: %v", d.Digest, err)
	}
	if d.Size < 0 || d.Size > limit {
		return invalid("%s has %d bytes, at most %d are allowed", d.Digest, d.Size, limit)
	}
	return nil
}

// choose picks the manifest for a platform.
func choose(manifests []ocispec.Descriptor, want platforms.MatchComparer) (ocispec.Descriptor, error) {
	var best *ocispec.Descriptor
	var offered []string
	for i, m := range manifests {
		p := m.Platform
		if p == nil {
			if len(manifests) == 1 {
				return m, nil // its configuration will tell
			}
			continue
		}
		offered = append(offered, platforms.Format(*p))
		if want.Match(*p) && (best == nil || want.Less(*p, *best.Platform)) {
			best = &manifests[i]
		}
	}
	if best == nil {
		return ocispec.Descriptor{}, fmt.Errorf("%w, but for %s", errPlatform, strings.Join(offered, ", "))
	}
	return *best, nil
}

// moduleSystems are what builders call the system of a WebAssembly module.
var moduleSystems = []string{"wasip1", "wasi"}

func isModule(c ocispec.Image) bool { return slices.Contains(moduleSystems, c.OS) }

// platformFor is what is taken of an index, the best first.
func platformFor(machine platforms.MatchComparer, as kind) platforms.MatchComparer {
	if as != module {
		return machine
	}
	return modulesFirst{machine}
}

// modulesFirst prefers modules to what the machine runs itself.
type modulesFirst struct{ machine platforms.MatchComparer }

func (m modulesFirst) Match(p ocispec.Platform) bool {
	return slices.Contains(moduleSystems, p.OS) || m.machine.Match(p)
}

func (m modulesFirst) Less(a, b ocispec.Platform) bool {
	rank := func(p ocispec.Platform) int {
		if i := slices.Index(moduleSystems, p.OS); i >= 0 {
			return i
		}
		return len(moduleSystems)
	}
	if x, y := rank(a), rank(b); x != y {
		return x < y
	}
	return m.machine.Less(a, b)
}

// indexes are those that are here.
type indexes struct {
	content *content
	machine platforms.MatchComparer
}

// offered is the manifest that is taken of an index, as far as its documents are here. Nothing is where there is no
// choice.
func (x indexes) offered(index digest.Digest, as kind) (digest.Digest, bool) {
	d := index
	for range maxNested {
		if d == "" {
			return "", false
		}
		body, err := x.content.read(d)
		if err != nil {
			return d, d != index // a manifest that was not taken was not fetched either
		}
		doc, err := parseDocument("", body)
		if err != nil {
			return "", false
		}
		if !doc.isIndex() {
			return d, true
		}
		next, err := choose(*doc.Manifests, platformFor(x.machine, as))
		if err != nil {
			return "", false
		}
		d = next.Digest
	}
	return "", false
}

// parseConfig reads the configuration of an image with so many layers, and returns the keys of its snapshots, the
// lowest first.
func parseConfig(body []byte, layers int) (ocispec.Image, []string, error) {
	var c ocispec.Image
	if err := json.Unmarshal(body, &c); err != nil {
		return c, nil, invalid("read configuration: %v", err)
	}
	if c.OS != "" && c.OS != "linux" && !isModule(c) {
		return c, nil, fmt.Errorf("image is made for %q", c.OS)
	}
	if len(c.RootFS.DiffIDs) != layers {
		return c, nil, invalid("%d layers, but %d in the configuration", layers, len(c.RootFS.DiffIDs))
	}
	for _, d := range c.RootFS.DiffIDs {
		if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
			return c, nil, invalid("digest %q of an unpacked layer", d)
		}
	}
	var chain []string
	for _, d := range identity.ChainIDs(append([]digest.Digest(nil), c.RootFS.DiffIDs...)) {
		chain = append(chain, d.String())
	}
	return c, chain, nil
}

// chainOf is the chain of layers of a configuration that was good once.
func chainOf(config []byte) ([]string, error) {
	var c ocispec.Image
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, invalid("read configuration: %v", err)
	}
	_, chain, err := parseConfig(config, len(c.RootFS.DiffIDs))
	return chain, err
}
