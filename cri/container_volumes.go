package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/oci"
)

// anonymousVolumes are the places that get a volume of their own because the image wants it. What the pod mounts there itself is meant
// instead, and an image has no say in what of the machine and of the pod a container sees.
func anonymousVolumes(img image.Image, cfg *runtimeapi.ContainerConfig) []string {
	var out []string
	for _, v := range img.Volumes() {
		at := path.Clean("/" + v)
		taken := slices.ContainsFunc(cfg.GetMounts(), func(m *runtimeapi.Mount) bool { return path.Clean("/"+m.GetContainerPath()) == at })
		system := slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(dir string) bool { return at == dir || strings.HasPrefix(at, dir+"/") })
		file := slices.Contains([]string{"/", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}, at)
		if !taken && !system && !file && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// volumeKey is the snapshot that a volume is: one that stands on nothing. So it is removed, found again and counted as the container's own
// files are.
func volumeKey(id string, i int) string { return id + "-volume" + strconv.Itoa(i) }

// makeVolumes makes the volumes that the image wants, with what it has in their places.
func (cs *containers) makeVolumes(c *container) act {
	return func(ctx context.Context) error {
		for i, at := range c.record().Volumes {
			dir, err := cs.volumeDir(ctx, c, i)
			if err == nil {
				err = cs.fill(dir, c, at)
			}
			if err != nil {
				return fmt.Errorf("volume %s of the image: %w", at, err)
			}
		}
		return nil
	}
}

// volumeDir is where a volume is; it is made when it is not there.
func (cs *containers) volumeDir(ctx context.Context, c *container, i int) (string, error) {
	mounts, err := cs.snaps.Prepare(ctx, volumeKey(c.id, i), "")
	if err != nil {
		return "", err
	}
	if len(mounts) != 1 || mounts[0].Type != "bind" {
		return "", fmt.Errorf("snapshotter %s has no plain directories", cs.snaps.Name())
	}
	return mounts[0].Source, nil
}

// fill copies what the image has at a place, as the container sees it: with the ids of its pod. Links in the place's own path are
// followed inside of the root; nobody can change them yet.
func (cs *containers) fill(dir string, c *container, at string) error {
	from, err := within(cs.paths.rootfs(c.id), strings.TrimPrefix(at, "/"))
	if errors.Is(err, unix.ENOENT) {
		return cs.emptyVolume(dir, c)
	}
	if err != nil {
		return err
	}
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return invalidf("the image has a file there, and not a directory")
	}
	return fs.CopyDir(dir, from)
}

func (cs *containers) emptyVolume(dir string, c *container) error {
	if err := os.Chmod(dir, 0o755); err != nil || c.sandbox.ids == nil {
		return err
	}
	root := c.sandbox.ids.Root()
	return os.Chown(dir, int(root.UID), int(root.GID))
}

func (cs *containers) removeVolumes(c *container) act {
	return func(ctx context.Context) error {
		var errs []error
		for i := range c.record().Volumes {
			errs = append(errs, cs.snaps.Remove(ctx, volumeKey(c.id, i)))
		}
		return errors.Join(errs...)
	}
}

// volumesOf are the volumes as they are mounted.
func (cs *containers) volumesOf(ctx context.Context, c *container) ([]oci.Volume, error) {
	var out []oci.Volume
	for i, at := range c.record().Volumes {
		dir, err := cs.volumeDir(ctx, c, i)
		if err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", at, err)
		}
		out = append(out, oci.Volume{Path: at, Source: filepath.Clean(dir)})
	}
	return out, nil
}
