package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/mount"
)

// life is what becomes of volumes of one kind, from who makes them to who removes them.
type life struct {
	d    *Driver
	kind string
	dir  string
}

const (
	lifeGroup = "77"
	lifeSize  = 320 << 20
)

// acts are the acts of a life, in their order, with what undoes each.
var acts = []struct{ name, undo string }{
	{"create", "end"},
	{"stage", "unstage"},
	{"publish", "unpublish"},
	{"write", ""},
	{"snapshot", "end snapshots"},
	{"group", "end group"},
	{"end group", "group"},
	{"restored", "end restored"},
	{"end restored", "restored"},
	{"inline", "end inline"},
	{"end inline", "inline"},
	{"expand", ""},
	{"unpublish", "publish"},
	{"unstage", "stage"},
	{"end snapshots", ""},
	{"unused snapshot", "end snapshots"},
	{"clone", "end clone"},
	{"end clone", "clone"},
	{"end snapshots", "unused snapshot"},
	{"end", ""},
}

func (l life) capability() *csi.VolumeCapability {
	c := mounted("")
	c.GetMount().VolumeMountGroup = lifeGroup
	switch l.kind {
	case typeLoop:
		c.GetMount().FsType = "xfs" // which may be made larger without CAP_SYS_RESOURCE
	case "block":
		return block()
	}
	return c
}

func (l life) request(name string, bytes int64) *csi.CreateVolumeRequest {
	kind := l.kind
	if kind == "block" {
		kind = typeLoop
	}
	return request(name, kind, l.capability(), bytes)
}

func (l life) path(name string) string { return filepath.Join(l.dir, name) }

// copies says whether the volume can be copied while it is in use.
func (l life) copies() bool { return l.kind == typeLoop }

func (l life) from(snapshot string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: idOf(snapshotKind, snapshot)},
	}}
}

func (l life) stage(ctx context.Context, name string) error {
	_, err := node{d: l.d}.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: idOf(volumeKind, name), StagingTargetPath: l.path("staging-" + name), VolumeCapability: l.capability(),
	})
	return err
}

func (l life) publish(ctx context.Context, name string) error {
	_, err := node{d: l.d}.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: idOf(volumeKind, name), StagingTargetPath: l.path("staging-" + name), TargetPath: l.path("target-" + name), VolumeCapability: l.capability(),
	})
	return err
}

func (l life) unpublish(ctx context.Context, name string) error {
	_, err := node{d: l.d}.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: idOf(volumeKind, name), TargetPath: l.path("target-" + name)})
	return err
}

func (l life) unstage(ctx context.Context, name string) error {
	_, err := node{d: l.d}.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId: idOf(volumeKind, name), StagingTargetPath: l.path("staging-" + name),
	})
	return err
}

func (l life) create(ctx context.Context, q *csi.CreateVolumeRequest) error {
	_, err := controller{d: l.d}.CreateVolume(ctx, q)
	return err
}

func (l life) end(ctx context.Context, name string) error {
	if err := errors.Join(l.unpublish(ctx, name), l.unstage(ctx, name)); err != nil {
		return err
	}
	_, err := controller{d: l.d}.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: idOf(volumeKind, name)})
	return err
}

func (l life) snapshot(ctx context.Context, name string) error {
	_, err := controller{d: l.d}.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: idOf(volumeKind, "n")})
	return err
}

// do is one act, which may have been begun before.
func (l life) do(ctx context.Context, act string) (err error) {
	switch act {
	case "create":
		return l.create(ctx, l.request("n", lifeSize))
	case "stage":
		return l.stage(ctx, "n")
	case "publish":
		return l.publish(ctx, "n")
	case "write":
		return l.write()
	case "snapshot":
		if l.copies() {
			err = l.snapshot(ctx, "s")
		}
		return err
	case "group":
		if l.copies() {
			_, err = groups{d: l.d}.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{
				Name: "g", SourceVolumeIds: []string{idOf(volumeKind, "n")},
			})
		}
		return err
	case "expand":
		return l.expand(ctx)
	case "unpublish":
		return l.unpublish(ctx, "n")
	case "unstage":
		return l.unstage(ctx, "n")
	case "inline", "end inline":
		return l.inline(ctx, act == "inline")
	}
	return l.doCopies(ctx, act)
}

// doCopies is do for what is made of the volume.
func (l life) doCopies(ctx context.Context, act string) (err error) {
	switch act {
	case "restored":
		if l.copies() {
			q := l.request("restored", 2*lifeSize)
			q.VolumeContentSource = l.from("s")
			if err = l.create(ctx, q); err == nil {
				err = l.stage(ctx, "restored")
			}
			if err == nil {
				err = l.publish(ctx, "restored")
			}
		}
	case "unused snapshot":
		err = l.snapshot(ctx, "unused")
	case "clone":
		q := l.request("clone", 3*lifeSize)
		q.VolumeContentSource = l.from("unused")
		err = l.create(ctx, q)
	case "end snapshots":
		for _, name := range []string{"s", "unused"} {
			_, one := controller{d: l.d}.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: idOf(snapshotKind, name)})
			err = errors.Join(err, one)
		}
	case "end group":
		_, err = groups{d: l.d}.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: idOf(groupKind, "g")})
	case "end restored":
		err = l.end(ctx, "restored")
	case "end clone":
		err = l.end(ctx, "clone")
	case "end":
		err = l.end(ctx, "n")
	default:
		err = fmt.Errorf("no act is called %q", act)
	}
	return err
}

func (l life) expand(ctx context.Context) error {
	_, err := controller{d: l.d}.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: idOf(volumeKind, "n"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * lifeSize},
	})
	if err != nil {
		return err
	}
	_, err = node{d: l.d}.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: idOf(volumeKind, "n"), VolumePath: l.path("target-n")})
	return err
}

func (l life) inline(ctx context.Context, up bool) error {
	if l.kind == "block" {
		return nil
	}
	target := l.path("target-inline")
	if !up {
		_, err := node{d: l.d}.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: target})
		return err
	}
	_, err := node{d: l.d}.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: target, VolumeCapability: l.capability(),
		VolumeContext: map[string]string{ephemeralKey: "true", "type": l.kind, "size": strconv.Itoa(lifeSize)},
	})
	return err
}

// write writes to what is published, and syncs it.
func (l life) write() error {
	path, flags := l.path("target-n"), os.O_WRONLY
	if l.kind != "block" {
		path, flags = filepath.Join(path, "f"), flags|os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o660)
	if err != nil {
		return err
	}
	_, err = f.WriteString("data")
	return errors.Join(err, f.Sync(), f.Close())
}

// is says what is wrong with a volume that is published: its data, its group, or its size.
func (l life) is(name string, bytes int64) error {
	path := l.path("target-" + name)
	if l.kind == "block" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		data := make([]byte, 4)
		if _, err := f.Read(data); err != nil || string(data) != "data" {
			return fmt.Errorf("%s has %q, %w", name, data, err)
		}
		return nil
	}
	if data, err := os.ReadFile(filepath.Join(path, "f")); err != nil || string(data) != "data" {
		return fmt.Errorf("%s has %q, %w", name, data, err)
	}
	return l.shaped("target-"+name, bytes)
}

// shaped says what is wrong with the group or the size of a volume that is mounted.
func (l life) shaped(name string, bytes int64) error {
	path := l.path(name)
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Stat(path, &st), unix.Statfs(path, &fs)); err != nil {
		return err
	}
	if strconv.Itoa(int(st.Gid)) != lifeGroup {
		return fmt.Errorf("%s is of group %d", name, st.Gid)
	}
	if has := int64(fs.Blocks) * fs.Bsize; l.kind == typeLoop && has < bytes*7/10 {
		return fmt.Errorf("%s has %d bytes, %d were asked for", name, has, bytes)
	}
	return nil
}

// check looks at what is published after an act.
func (l life) check(act string) error {
	switch act {
	case "stage":
		switch l.kind {
		case typeLoop:
			return l.shaped("staging-n", lifeSize)
		case typeDirectory: // which its users are given as it is
			if is, err := mount.Is(l.path("staging-n")); err != nil || is {
				return errors.Join(err, errors.New("something is mounted where it is staged"))
			}
		}
	case "publish":
		if l.kind != "block" {
			return l.shaped("target-n", lifeSize)
		}
	case "write", "snapshot", "group":
		return l.is("n", lifeSize)
	case "restored":
		if l.copies() {
			return errors.Join(l.is("restored", 2*lifeSize), l.is("n", lifeSize))
		}
	case "expand":
		return l.is("n", 2*lifeSize)
	case "inline":
		if l.kind != "block" {
			return l.shaped("target-inline", lifeSize)
		}
	}
	return nil
}
