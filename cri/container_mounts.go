package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image"
)

// checkMounts makes missing host paths, as CRI clients are used to, and refuses propagation the host's mount does not give.
func checkMounts(mounts []*runtimeapi.Mount) error {
	for _, m := range mounts {
		src := m.GetHostPath()
		if m.GetImage() != nil {
			if src != "" {
				return invalidf("mount %s: both an image and a host path", m.GetContainerPath())
			}
			if !m.GetReadonly() {
				return invalidf("mount %s: an image is mounted read-only, so readonly must be true", m.GetContainerPath())
			}
			continue
		}
		if src == "" {
			return invalidf("mount %s: no host path", m.GetContainerPath())
		}
		if _, err := os.Stat(src); errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(src, 0o755); err != nil {
				return fmt.Errorf("make host path of mount %s: %w", m.GetContainerPath(), err)
			}
		} else if err != nil {
			return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		if m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			if err := checkPropagation(src, m.GetPropagation()); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkPropagation(src string, want runtimeapi.MountPropagation) error {
	real, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	var at *mountinfo.Info
	for _, m := range mounts {
		// Of mounts at one place the last is on top.
		if at == nil || len(m.Mountpoint) >= len(at.Mountpoint) {
			at = m
		}
	}
	if at == nil {
		return fmt.Errorf("no mount found for %q", src)
	}
	shared, slave := strings.Contains(at.Optional, "shared:"), strings.Contains(at.Optional, "master:")
	if shared || slave && want == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
		return nil
	}
	kind := "shared"
	if want == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
		kind = "shared or slave"
	}
	return fmt.Errorf("path %q is mounted on %q but it is not a %s mount", src, at.Mountpoint, kind)
}

// imageMountPaths is what containers bind of their image volumes.
func (cs *containers) imageMountPaths(c *container) ([]string, error) {
	var out []string
	for i, m := range c.cfg.GetMounts() {
		path := ""
		if m.GetImage() != nil {
			var err error
			if path, err = within(filepath.Join(cs.paths.imageMounts(c.id), strconv.Itoa(i)), m.GetImageSubPath()); err != nil {
				return nil, fmt.Errorf("image volume %s: %w", m.GetContainerPath(), err)
			}
		}
		out = append(out, path)
	}
	return out, nil
}

// within is where a path in an image leads. Links in it are followed as in the image's own root, so that none leads out of it; once
// followed they stay so, since nobody can write there.
func within(dir, sub string) (string, error) {
	if sub == "" {
		return dir, nil
	}
	if !filepath.IsLocal(sub) {
		return "", invalidf("sub path %q: must be relative and must not lead out of the image", sub)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return "", fmt.Errorf("sub path %q: %w", sub, err)
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
func (cs *containers) mountImages(c *container) act {
	if !hasImageMounts(c.cfg) {
		return nil
	}
	return func(ctx context.Context) error {
		for i, m := range c.cfg.GetMounts() {
			if m.GetImage() == nil {
				continue
			}
			if err := cs.mountImage(ctx, c, i, m); err != nil {
				return fmt.Errorf("image volume %s: %w", m.GetContainerPath(), err)
			}
		}
		return nil
	}
}

// nameImages returns cfg with the references of the images that are its volumes, as statuses show them.
func (cs *containers) nameImages(cfg *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	if !hasImageMounts(cfg) {
		return cfg
	}
	out := proto.CloneOf(cfg)
	for _, m := range out.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		if img, err := cs.images.Get(m.GetImage().GetImage()); err == nil { // else the mount will say so
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

func (cs *containers) mountImage(ctx context.Context, c *container, i int, m *runtimeapi.Mount) error {
	img, err := cs.images.Get(m.GetImage().GetImage())
	if err != nil {
		return err
	}
	dir := filepath.Join(cs.paths.imageMounts(c.id), strconv.Itoa(i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	mounts, err := cs.snaps.View(ctx, viewKey(c.id, i), img.TopLayer)
	if err != nil {
		return err
	}
	return cs.mounts.mount(cs.mapped(c.sandbox, mounts), dir)
}

func viewKey(id string, i int) string { return id + "-" + strconv.Itoa(i) }

func (cs *containers) unmountImages(c *container) act {
	if !hasImageMounts(c.cfg) {
		return nil
	}
	return func(ctx context.Context) error {
		var errs []error
		for i, m := range c.cfg.GetMounts() {
			if m.GetImage() == nil {
				continue
			}
			dir := filepath.Join(cs.paths.imageMounts(c.id), strconv.Itoa(i))
			if err := cs.mounts.unmount(dir); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, cs.snaps.Remove(ctx, viewKey(c.id, i)))
		}
		return errors.Join(errs...)
	}
}
