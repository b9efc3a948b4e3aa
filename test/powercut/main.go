// Powercut is who uses the driver for storage of this machine in a virtual machine whose power is cut: it looks whether
// all that was promised before the last cut is there, and then makes, changes and removes volumes until the next. What
// it tells goes to standard output, a line each, since nothing else of the machine is left.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Sizes of volumes in bytes.
const (
	small = 32 << 20
	large = 64 << 20
)

// promised is what a volume was said to be.
type promised struct {
	ID       string `json:"id"`
	Text     string `json:"text"` // what was written to it and synced
	Large    bool   `json:"large"`
	Snapshot string `json:"snapshot"` // what had Text
	Doubt    string `json:"doubt"`    // what was being done with it
	Unsure   bool   `json:"unsure"`   // more of what it tells may have been done than was heard
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: powercut SOCKET DATA-DIR LEDGER ROUND")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket, dir, ledger, round string) error {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // the driver comes up meanwhile
	if err != nil {
		return err
	}
	defer conn.Close()
	u := &user{controller: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn)}
	all := map[string]promised{}
	if err := json.Unmarshal([]byte(ledger), &all); err != nil {
		return fmt.Errorf("read ledger: %w", err)
	}
	for name, p := range all {
		if err := u.look(ctx, name, p); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := u.nothingElse(ctx, dir); err != nil {
		return err
	}
	fmt.Println("LOOKED", len(all))
	if round == "" {
		return nil
	}
	for i := 0; ; i++ {
		if err := u.live(ctx, fmt.Sprintf("%s-%d", round, i)); err != nil {
			return err
		}
	}
}

// user calls the driver.
type user struct {
	controller csi.ControllerClient
	node       csi.NodeClient
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func (u *user) create(ctx context.Context, name string, bytes int64, snapshot string) (string, error) {
	q := &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability()}, Parameters: map[string]string{"type": "loop"},
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	}
	if snapshot != "" {
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
		}}
	}
	made, err := u.controller.CreateVolume(ctx, q)
	return made.GetVolume().GetVolumeId(), err
}

func staging(id string) string { return "/run/staging-" + id }
func target(id string) string  { return "/run/target-" + id }

func (u *user) stage(ctx context.Context, id string) error {
	_, err := u.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging(id), VolumeCapability: capability(),
	})
	return err
}

func (u *user) publish(ctx context.Context, id string) error {
	_, err := u.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging(id), TargetPath: target(id), VolumeCapability: capability(),
	})
	return err
}

func (u *user) down(ctx context.Context, id string) error {
	if _, err := u.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target(id)}); err != nil {
		return err
	}
	_, err := u.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging(id)})
	return err
}

func (u *user) remove(ctx context.Context, id string) error {
	_, err := u.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

// live is the life of one volume. Each act is told before and after it is done.
func (u *user) live(ctx context.Context, name string) (err error) {
	id := ""
	for _, act := range []struct {
		name string
		do   func() (string, error)
	}{
		{"create", func() (string, error) { id, err = u.create(ctx, name, small, ""); return id, err }},
		{"stage", func() (string, error) { return "", u.stage(ctx, id) }},
		{"publish", func() (string, error) { return "", u.publish(ctx, id) }},
		{"write", func() (string, error) { return write(id, name) }},
		{"snapshot", func() (string, error) {
			made, err := u.controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
			return made.GetSnapshot().GetSnapshotId(), err
		}},
		{"expand", func() (string, error) { return "", u.expand(ctx, id) }},
		{"down", func() (string, error) { return "", u.down(ctx, id) }},
	} {
		fmt.Println("DO", name, act.name)
		began := time.Now()
		said, err := act.do()
		if err != nil {
			return fmt.Errorf("%s %s: %w", act.name, name, err)
		}
		fmt.Println("DID", name, act.name, time.Since(began).Milliseconds(), said)
	}
	return nil
}

// write writes to a volume that is published, and syncs it.
func write(id, text string) (string, error) {
	f, err := os.Create(filepath.Join(target(id), "f"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	return text, nil
}

func (u *user) expand(ctx context.Context, id string) error {
	_, err := u.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: large},
	})
	if err == nil {
		_, err = u.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target(id)})
	}
	return err
}

// look says what is not as it was promised of a volume, and removes it with its snapshot.
func (u *user) look(ctx context.Context, name string, p promised) error {
	bytes, id := int64(small), p.ID
	if p.Doubt == "create" { // whoever has no answer asks again
		var err error
		if id, err = u.create(ctx, name, small, ""); err != nil {
			return err
		}
	}
	if p.Doubt == "expand" {
		if _, err := u.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: large},
		}); err != nil {
			return err
		}
	}
	if p.Large || p.Doubt == "expand" {
		bytes = large
	}
	if p.Doubt == "snapshot" {
		made, err := u.controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
		if err != nil {
			return err
		}
		p.Snapshot = made.GetSnapshot().GetSnapshotId()
	}
	if err := u.has(ctx, id, p.Text, bytes); err != nil {
		return err
	}
	if p.Unsure && p.Snapshot == "" {
		if err := u.forget(ctx, id); err != nil {
			return err
		}
	}
	if p.Snapshot == "" {
		return u.remove(ctx, id)
	}
	restored, err := u.create(ctx, name+"-restored", small, p.Snapshot)
	if err == nil {
		err = u.has(ctx, restored, p.Text, small)
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if err := u.remove(ctx, restored); err != nil {
		return err
	}
	if _, err := u.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: p.Snapshot}); err != nil {
		return err
	}
	return u.remove(ctx, id)
}

// forget removes the snapshots of a volume that may have some.
func (u *user) forget(ctx context.Context, id string) error {
	all, err := u.controller.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SourceVolumeId: id})
	if err != nil {
		return err
	}
	for _, s := range all.GetEntries() {
		if _, err := u.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshot().GetSnapshotId()}); err != nil {
			return err
		}
	}
	return nil
}

// has says whether a volume can be mounted, has a text, and is large enough.
func (u *user) has(ctx context.Context, id, text string, bytes int64) error {
	got, err := u.controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil {
		return err
	}
	if got.GetVolume().GetCapacityBytes() < bytes {
		return fmt.Errorf("the record says %d bytes, and %d were promised", got.GetVolume().GetCapacityBytes(), bytes)
	}
	if err := u.stage(ctx, id); err != nil {
		return err
	}
	if err := u.publish(ctx, id); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target(id), &st); err != nil {
		return err
	}
	if has := int64(st.Blocks) * st.Bsize; has < bytes*7/10 {
		return fmt.Errorf("the file system has %d bytes of %d", has, bytes)
	}
	data, err := os.ReadFile(filepath.Join(target(id), "f"))
	if text != "" && (err != nil || string(data) != text) {
		return fmt.Errorf("it has %q, and %q was synced: %w", data, text, err)
	}
	return u.down(ctx, id)
}

// nothingElse says what is left that nobody was promised.
func (u *user) nothingElse(ctx context.Context, dir string) error {
	volumes, err := u.controller.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return err
	}
	snapshots, err := u.controller.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	if len(volumes.GetEntries())+len(snapshots.GetEntries()) > 0 {
		return fmt.Errorf("left: %v %v", volumes, snapshots)
	}
	for _, name := range []string{"images", "volumes", "inline", "quarantine", "records/volumes", "records/snapshots"} {
		left, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("left in %s: %v %w", name, left, err)
		}
	}
	return nil
}
