package container

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

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/step"
	"github.com/berth-node/berth/internal/filetree"
)

// anonymousVolumes are the places that get a volume of their own because the image wants it. What the pod mounts there
// itself is meant instead, and an image has no say in what of the machine and of the pod a container sees.
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

// volumeKey is the snapshot that a volume is: one that stands on nothing. So it is removed, found again and counted as
// the container's own files are.
func volumeKey(id string, i int) string { return id + "-volume" + strconv.Itoa(i) }

// makeVolumes makes the volumes that the image wants, with what it has in their places.
func (b *bundles) makeVolumes(c *Container) step.Act {
	return func(ctx context.Context) error {
		for i, at := range c.Record().Volumes {
			dir, err := b.volumeDir(ctx, c, i)
			if err == nil {
				err = b.fill(ctx, dir, c, at)
			}
			if err != nil {
				return fmt.Errorf("volume %s of the image: %w", inMessage(at), err)
			}
		}
		return nil
	}
}

// longestInMessage is how much of a path that an image has chosen is worth a message.
const longestInMessage = 100

// inMessage is a path as a message has it.
func inMessage(path string) string {
	if len(path) <= longestInMessage {
		return path
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(path[:longestInMessage], ""), len(path))
}

// volumeDir is where a volume is; it is made when it is not there.
func (b *bundles) volumeDir(ctx context.Context, c *Container, i int) (string, error) {
	mounts, err := b.host.Snaps.Prepare(ctx, volumeKey(c.ID, i), "")
	if err != nil {
		return "", err
	}
	if len(mounts) != 1 || mounts[0].Type != "bind" {
		return "", fmt.Errorf("snapshotter %s has no plain directories", b.host.Snaps.Name())
	}
	return mounts[0].Source, nil
}

// volumeShare is how much of what is free one volume may take: what it is made of is anybody's.
const volumeShare = 0.9

// fill copies what the image has at a place, as the container sees it: with the ids of its pod. Links in the place's
// own path are followed inside of the root; nobody can change them yet.
func (b *bundles) fill(ctx context.Context, dir string, c *Container, at string) error {
	root := b.host.Paths.Container(c.ID).Rootfs()
	if len(root)+len(at) >= unix.PathMax {
		return unix.ENAMETOOLONG // for who mounts it there
	}
	from, err := within(root, strings.TrimPrefix(at, "/"))
	if errors.Is(err, unix.ENOENT) {
		return b.emptyVolume(dir, c)
	}
	if err != nil {
		return err
	}
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fault.Invalidf("the image has a file there, and not a directory")
	}
	room, err := filetree.RoomOf(dir, volumeShare)
	if err != nil {
		return err
	}
	return filetree.Copy(ctx, dir, from, room)
}

func (b *bundles) emptyVolume(dir string, c *Container) error {
	if err := os.Chmod(dir, 0o755); err != nil || c.Sandbox.IDs == nil {
		return err
	}
	root := c.Sandbox.IDs.Root()
	return os.Chown(dir, int(root.UID), int(root.GID))
}

func (b *bundles) removeVolumes(c *Container) step.Act {
	return func(ctx context.Context) error {
		var errs []error
		for i := range c.Record().Volumes {
			errs = append(errs, b.host.Snaps.Remove(ctx, volumeKey(c.ID, i)))
		}
		return errors.Join(errs...)
	}
}

// volumesOf are the volumes as they are mounted.
func (b *bundles) volumesOf(ctx context.Context, c *Container) ([]oci.Volume, error) {
	var out []oci.Volume
	for i, at := range c.Record().Volumes {
		dir, err := b.volumeDir(ctx, c, i)
		if err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", inMessage(at), err)
		}
		out = append(out, oci.Volume{Path: at, Source: filepath.Clean(dir)})
	}
	return out, nil
}
