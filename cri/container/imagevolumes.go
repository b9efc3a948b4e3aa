package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/step"
	"github.com/berth-node/berth/internal/openat"
)

// imageMountPaths is what containers bind of their image volumes.
func (b *bundles) imageMountPaths(c *Container) ([]string, error) {
	var out []string
	for i, m := range c.Config.GetMounts() {
		path := ""
		if m.GetImage() != nil {
			var err error
			if path, err = within(filepath.Join(b.host.Paths.Container(c.ID).ImageMounts(), strconv.Itoa(i)), m.GetImageSubPath()); err != nil {
				return nil, fmt.Errorf("image volume %s: %w", m.GetContainerPath(), err)
			}
		}
		out = append(out, path)
	}
	return out, nil
}

// within is where a path in an image leads. Links in it are followed as in the image's own root, so that none leads out
// of it; once followed they stay so, since nobody can write there.
func within(dir, sub string) (string, error) {
	if sub == "" {
		return dir, nil
	}
	if !filepath.IsLocal(sub) {
		return "", fault.Invalidf("sub path %q: must be relative and must not lead out of the image", sub)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	fd, err := openat.Open(root, sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return "", fmt.Errorf("sub path %q: %w", inMessage(sub), err)
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

func hasImageMounts(cfg *runtimeapi.ContainerConfig) bool {
	for _, m := range cfg.GetMounts() {
		if m.GetImage() != nil {
			return true
		}
	}
	return false
}

// mountImages mounts the images that are volumes of the container, each from a view of its own.
func (b *bundles) mountImages(c *Container) step.Act {
	if !hasImageMounts(c.Config) {
		return nil
	}
	return func(ctx context.Context) error {
		for i, m := range c.Config.GetMounts() {
			if m.GetImage() == nil {
				continue
			}
			if err := b.mountImage(ctx, c, i, m); err != nil {
				return fmt.Errorf("image volume %s: %w", m.GetContainerPath(), err)
			}
		}
		return nil
	}
}

// nameImages returns cfg with the references of the images that are its volumes, as statuses show them.
func (b *bundles) nameImages(cfg *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	if !hasImageMounts(cfg) {
		return cfg
	}
	out := proto.CloneOf(cfg)
	for _, m := range out.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		if img, err := b.host.Images.Get(m.GetImage().GetImage()); err == nil { // else the mount will say so
			m.Image.ImageRef = imageRef(img)
		}
	}
	return out
}

// imageRef is what containers show as their image: by the digest in its registry, or by its ID.
func imageRef(img image.Image) string {
	if len(img.Digests) > 0 {
		return img.Digests[0]
	}
	return img.ID
}

func (b *bundles) mountImage(ctx context.Context, c *Container, i int, m *runtimeapi.Mount) error {
	img, err := b.host.Images.Get(m.GetImage().GetImage())
	if err != nil {
		return err
	}
	dir := filepath.Join(b.host.Paths.Container(c.ID).ImageMounts(), strconv.Itoa(i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	mounts, err := b.host.Snaps.View(ctx, viewKey(c.ID, i), img.TopLayer)
	if err != nil {
		return err
	}
	return b.host.Mounts.Mount(b.mapped(c.Sandbox, mounts), dir)
}

func viewKey(id string, i int) string { return id + "-" + strconv.Itoa(i) }

func (b *bundles) unmountImages(c *Container) step.Act {
	if !hasImageMounts(c.Config) {
		return nil
	}
	return func(ctx context.Context) error {
		var errs []error
		for i, m := range c.Config.GetMounts() {
			if m.GetImage() == nil {
				continue
			}
			dir := filepath.Join(b.host.Paths.Container(c.ID).ImageMounts(), strconv.Itoa(i))
			if err := b.host.Mounts.Unmount(dir); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, b.host.Snaps.Remove(ctx, viewKey(c.ID, i)))
		}
		return errors.Join(errs...)
	}
}
