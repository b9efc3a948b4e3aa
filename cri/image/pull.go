package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.opentelemetry.io/otel/trace"

	"github.com/berth-node/berth/cri/image/registry"
)

// pulls bring images here from registries.
type pulls struct {
	registry  *registry.Client
	images    *catalog
	content   *content
	leases    *leases
	unpacker  *unpacker
	collector *collector
	machine   platforms.MatchComparer
	log       *slog.Logger

	flights flights[Image]
}

func (ps *pulls) pull(ctx context.Context, ref string, as kind, auth *Auth, progress func(Progress)) (Image, error) {
	named, err := ParseName(ref)
	if err != nil {
		return Image{}, err
	}
	key := string(as) + " " + named.String()
	if auth != nil {
		key = strings.Join([]string{
			key, auth.ServerAddress, auth.Username, auth.Password, auth.IdentityToken, auth.RegistryToken,
		}, "\x00")
	}
	return ps.flights.do(ctx, key, progress, func(ctx context.Context, tell func(Progress)) (Image, error) {
		ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cri").Start(ctx, "pull image")
		defer span.End()
		img, err := ps.from(ctx, named, as, auth, tell)
		if err != nil {
			return img, fmt.Errorf("pull %s: %w", reference.FamiliarString(named), err)
		}
		tell(Progress{Ref: named.String(), Phase: Done})
		return img, nil
	})
}

// from pulls from the registry that the name names, unless it still has under that name what is here already.
func (ps *pulls) from(
	ctx context.Context, named reference.Named, as kind, auth *Auth, tell func(Progress),
) (Image, error) {
	tell(Progress{Ref: named.String(), Phase: Resolving})
	repo, err := ps.registry.Repository(ctx, named, auth)
	if err != nil {
		return Image{}, err
	}
	defer repo.Close()
	if have, ok := ps.images.target(named); ok {
		object := have.String()
		if tagged, ok := named.(reference.Tagged); ok {
			object = tagged.Tag()
		}
		target, err := repo.Head(ctx, object)
		if err != nil {
			return Image{}, err
		}
		if img, ok := ps.images.at(named, target, as); ok {
			return img, nil
		}
	}
	p := &puller{pulls: ps, repo: repo, named: named, as: as, tell: tell}
	defer p.release()
	return p.run(ctx)
}

// puller is one pull.
type puller struct {
	pulls *pulls
	repo  *registry.Repository
	named reference.Named
	as    kind
	tell  func(Progress)

	kept     []digest.Digest
	releases []func()
}

func (p *puller) release() {
	for _, r := range p.releases {
		r()
	}
}

func (p *puller) lease(keys ...string) { p.releases = append(p.releases, p.pulls.leases.take(keys...)) }

func (p *puller) run(ctx context.Context) (Image, error) {
	m, err := p.top(ctx)
	if err != nil {
		return Image{}, err
	}
	target := m.Digest
	m, doc, err := p.descend(ctx, m)
	if err != nil {
		return Image{}, err
	}
	body, err := p.config(ctx, *doc.Config)
	if err != nil {
		return Image{}, err
	}
	config, chain, err := parseConfig(body, len(doc.Layers))
	if err != nil {
		return Image{}, err
	}
	warnPlatform(p.pulls.log, p.pulls.machine, p.named.String(), config)
	u := &unpacking{
		unpacker: p.pulls.unpacker, ref: p.named.String(), registry: reference.Domain(p.named),
		tell: p.tell,
	}
	p.lease(layerKeys(chain)...)
	if err := p.pulls.content.outlive(p.kept, p.pulls.unpacker.layers, topOf(chain)); err != nil {
		return Image{}, err
	}
	for i, l := range doc.Layers {
		u.add(chain[:i+1], config.RootFS.DiffIDs[i], l, func(ctx context.Context, count func(int)) (packed, error) {
			return p.pulls.content.open(ctx, l, p.blob(ctx, l), count)
		})
	}
	if err := u.run(ctx); err != nil {
		return Image{}, elsewhere(err, doc.Layers)
	}
	names := map[string]digest.Digest{reference.TrimNamed(p.named).String() + "@" + target.String(): target}
	if _, ok := p.named.(reference.Tagged); ok {
		names[p.named.String()] = target
	}
	img, err := p.pulls.images.put(doc.Config.Digest.String(), imageRecord{
		Manifest: m.Digest, Content: p.kept, Layers: chain, Config: config, PulledAt: time.Now(),
	}, names)
	if err != nil {
		return img, err
	}
	return img, p.pulls.collector.unpacked(doc.Layers)
}

// elsewhere tells of a layer that the registry does not have because it may not: such layers are fetched only from
// registries, never from the addresses that an image names.
func elsewhere(err error, layers []ocispec.Descriptor) error {
	if !errors.Is(err, registry.ErrNotFound) {
		return err
	}
	for _, l := range layers {
		if len(l.URLs) > 0 {
			return fmt.Errorf("%w (layer %s is meant to come from %s: push the image with all of its layers)", err,
				l.Digest, l.URLs[0])
		}
	}
	return err
}

// top fetches what the name names: a manifest or an index. The registry is asked for it even when it is here, by
// another name: whether who asks may have the image is the registry's to say.
func (p *puller) top(ctx context.Context) (registry.Manifest, error) {
	if tagged, ok := p.named.(reference.Tagged); ok {
		return p.repo.Tag(ctx, tagged.Tag())
	}
	return p.repo.Digest(ctx, p.named.(reference.Canonical).Digest())
}

// manifest fetches by digest, or finds it here.
func (p *puller) manifest(ctx context.Context, d ocispec.Descriptor) (registry.Manifest, error) {
	if body, err := p.pulls.content.read(d.Digest); err == nil {
		return registry.Manifest{MediaType: d.MediaType, Digest: d.Digest, Body: body}, nil
	}
	m, err := p.repo.Digest(ctx, d.Digest)
	if err == nil && d.Size > 0 && int64(len(m.Body)) != d.Size {
		return m, invalid("manifest %s has %d bytes, its index says %d", d.Digest, len(m.Body), d.Size)
	}
	return m, err
}

// descend goes from an index to the manifest for this machine, and keeps both.
func (p *puller) descend(ctx context.Context, m registry.Manifest) (registry.Manifest, document, error) {
	for range maxNested {
		if err := p.keep(m.Digest, m.Body); err != nil {
			return m, document{}, err
		}
		doc, err := parseDocument(m.MediaType, m.Body)
		if err != nil || !doc.isIndex() {
			return m, doc, err
		}
		d, err := choose(*doc.Manifests, platformFor(p.pulls.machine, p.as))
		if err != nil {
			return m, doc, err
		}
		if m, err = p.manifest(ctx, d); err != nil {
			return m, doc, err
		}
	}
	return m, document{}, invalid("more than %d indexes in each other", maxNested)
}

func (p *puller) keep(d digest.Digest, body []byte) error {
	p.lease(d.String())
	p.kept = append(p.kept, d)
	return p.pulls.content.write(d, body)
}

func (p *puller) blob(ctx context.Context, d ocispec.Descriptor) source {
	return source{
		fetch: func(offset int64) io.ReadCloser { return p.repo.Blob(ctx, d, offset) },
		other: func() bool { return p.repo.Distrust(d.Digest) },
	}
}

// config fetches the configuration.
func (p *puller) config(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	p.lease(d.Digest.String())
	p.kept = append(p.kept, d.Digest)
	if body, err := p.pulls.content.read(d.Digest); err == nil {
		return body, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for {
		r, err := p.pulls.content.open(ctx, d, p.blob(ctx, d), func(int) {})
		if err != nil {
			return nil, err
		}
		body, err := readAll(r, d)
		again := err != nil && r.trouble() == nil && r.again()
		if err = errors.Join(err, r.Close()); err == nil {
			return body, nil
		}
		if !again {
			return nil, fmt.Errorf("configuration %s: %w", d.Digest, err)
		}
	}
}

// warnPlatform tells of an image for another machine. It is not refused: some are made with a wrong architecture in
// their configuration, and some machines run others' programs.
func warnPlatform(log *slog.Logger, machine platforms.MatchComparer, ref string, c ocispec.Image) {
	if c.Architecture != "" && !isModule(c) && !machine.Match(c.Platform) {
		log.Warn("image is made for another kind of machine", "image", ref, "architecture", c.Architecture,
			"variant", c.Variant)
	}
}
