package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/local/record"
)

// A hundred volumes at once, of all kinds, come and go.
func TestHundredAtOnce(t *testing.T) {
	r := newRig(t)
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() {
			c, kind, size := mounted(""), typeDirectory, int64(4<<20)
			switch i % 10 {
			case 0:
				c, kind, size = mounted("ext4"), typeLoop, 16<<20
			case 1:
				c, kind = block(), typeLoop
			}
			name := fmt.Sprint(i)
			made, err := r.controller.CreateVolume(t.Context(), request(name, kind, c, size))
			if err != nil {
				t.Error(err)
				return
			}
			id := made.Volume.VolumeId
			for _, step := range []func() error{
				func() error { return r.stage(id, c) }, func() error { return r.publish(id, name, c, false) },
				func() error { return r.unpublish(id, name) }, func() error { return r.unstage(id) }, func() error { return r.remove(id) },
			} {
				if err := step(); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	wait.Wait()
	if left := r.driver.records.volumes.All(); len(left) > 0 {
		t.Errorf("left: %d", len(left))
	}
}

// Nothing is promised twice, however many ask at once.
func TestNothingPromisedTwice(t *testing.T) {
	r := newRig(t)
	before, err := r.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	must(t, err)
	size := before.AvailableCapacity / 4 / sizeStep * sizeStep
	var mu sync.Mutex
	var made []string
	var wait sync.WaitGroup
	for i := range 12 {
		wait.Go(func() {
			got, err := r.controller.CreateVolume(t.Context(), request(fmt.Sprint(i), typeLoop, mounted("ext4"), size))
			if err != nil {
				wantCode(t, err, codes.ResourceExhausted, "promised")
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, got.Volume.VolumeId)
		})
	}
	wait.Wait()
	if len(made) < 2 || len(made) > 5 { // others write to the disk meanwhile
		t.Errorf("%d volumes of a quarter were made", len(made))
	}
	for _, id := range made {
		must(t, r.remove(id))
	}
}

// mayResize says whether this process may make a mounted file system larger: of ext4 that takes CAP_SYS_RESOURCE.
func mayResize(fsType string) bool {
	head, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	return fsType != "ext4" || unix.Capget(&head, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func needResize(t *testing.T, fsType string) {
	t.Helper()
	if !mayResize(fsType) {
		t.Skip("needs CAP_SYS_RESOURCE, to make a mounted ext4 larger")
	}
}

// A volume grows while it is mounted, by the same calls whatever is on it.
func TestExpand(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			needResize(t, fsType)
			r, c := newRig(t), mounted(fsType)
			id := r.create(request("n", typeLoop, c, 320<<20))
			r.up(id, "a", c)
			write(t, filepath.Join(r.target("a"), "f"), "data")
			grown, err := r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 640 << 20},
			})
			must(t, err)
			if grown.CapacityBytes != 640<<20 || !grown.NodeExpansionRequired {
				t.Errorf("got %v", grown)
			}
			_, err = r.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: r.target("a")})
			must(t, err)
			var st unix.Statfs_t
			must(t, unix.Statfs(r.target("a"), &st))
			if has := int64(st.Blocks) * st.Bsize; has < 480<<20 {
				t.Errorf("the file system has %d bytes", has)
			}
			wantText(t, filepath.Join(r.target("a"), "f"), "data")
			r.down(id, "a")
			// Of what was made larger while it was not mounted the rest follows when it is.
			_, err = r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 960 << 20},
			})
			must(t, err)
			r.up(id, "a", c)
			must(t, unix.Statfs(r.target("a"), &st))
			if has := int64(st.Blocks) * st.Bsize; has < 720<<20 {
				t.Errorf("the file system has %d bytes", has)
			}
			r.down(id, "a")
			must(t, r.remove(id))
		})
	}
}

// A snapshot and a clone of a volume in use have what it had, and are mounted beside it.
func TestSnapshotInUse(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			r, c := newRig(t), mounted(fsType)
			id := r.create(request("n", typeLoop, c, 320<<20))
			r.up(id, "a", c)
			write(t, filepath.Join(r.target("a"), "f"), "before")
			shot, err := r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
			must(t, err)
			write(t, filepath.Join(r.target("a"), "f"), "after") // it is not frozen any more
			larger := int64(400 << 20)
			if !mayResize(fsType) {
				larger = 320 << 20
			}
			q := request("restored", typeLoop, c, larger)
			q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: shot.Snapshot.SnapshotId},
			}}
			restored := r.create(q)
			q = request("clone", typeLoop, c, 320<<20)
			q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
				Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
			}}
			clone := r.create(q)
			r.up(restored, "b", c)
			r.up(clone, "c", c)
			wantText(t, filepath.Join(r.target("b"), "f"), "before")
			wantText(t, filepath.Join(r.target("c"), "f"), "after")
			r.down(restored, "b")
			r.down(clone, "c")
			r.down(id, "a")
			for _, one := range []string{id, restored, clone} {
				must(t, r.remove(one))
			}
			_, err = r.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: shot.Snapshot.SnapshotId})
			must(t, err)
			left, err := os.ReadDir(filepath.Join(r.dir, "data", "images"))
			if err != nil || len(left) > 0 {
				t.Errorf("images left: %v, %v", left, err)
			}
		})
	}
}

// The snapshots of a group come and go together.
func TestGroup(t *testing.T) {
	r, c := newRig(t), mounted("ext4")
	var ids []string
	for _, name := range []string{"a", "b"} {
		id := r.create(request(name, typeLoop, c, 16<<20))
		r.up(id, name, c)
		write(t, filepath.Join(r.target(name), "f"), name)
		ids = append(ids, id)
	}
	q := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids}
	made, err := r.groups.CreateVolumeGroupSnapshot(t.Context(), q)
	must(t, err)
	again, err := r.groups.CreateVolumeGroupSnapshot(t.Context(), q)
	must(t, err)
	if len(made.GroupSnapshot.Snapshots) != 2 || again.GroupSnapshot.GroupSnapshotId != made.GroupSnapshot.GroupSnapshotId {
		t.Errorf("%v, %v", made, again)
	}
	_, err = r.groups.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids[:1]})
	wantCode(t, err, codes.AlreadyExists, "other volumes")
	one := made.GroupSnapshot.Snapshots[0].SnapshotId
	_, err = r.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: one})
	wantCode(t, err, codes.InvalidArgument, "group")
	_, err = r.groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: made.GroupSnapshot.GroupSnapshotId})
	must(t, err)
	if left := r.driver.records.snaps.All(); len(left) > 0 {
		t.Errorf("snapshots left: %v", left)
	}
	for i, name := range []string{"a", "b"} {
		r.down(ids[i], name)
		must(t, r.remove(ids[i]))
	}
}

// An inline volume lives as long as it is published.
func TestInline(t *testing.T) {
	for kind, fsType := range map[string]string{typeDirectory: "", typeLoop: "ext4"} {
		r, c := newRig(t), mounted(fsType)
		c.GetMount().VolumeMountGroup = "77"
		q := &csi.NodePublishVolumeRequest{
			VolumeId: "csi-0123/../x", TargetPath: r.target("a"), VolumeCapability: c,
			VolumeContext: map[string]string{ephemeralKey: "true", "type": kind, "size": "16Mi", "csi.storage.k8s.io/pod.name": "p"},
		}
		for range 2 {
			_, err := r.node.NodePublishVolume(t.Context(), q)
			must(t, err)
		}
		var st unix.Stat_t
		must(t, unix.Stat(r.target("a"), &st))
		if st.Gid != 77 || st.Mode&unix.S_ISGID == 0 {
			t.Errorf("group %d, mode %o", st.Gid, st.Mode)
		}
		write(t, filepath.Join(r.target("a"), "f"), "data")
		stats, err := r.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: q.VolumeId, VolumePath: q.TargetPath})
		must(t, err)
		if len(stats.Usage) != 2 || stats.Usage[0].Total > 16<<20 || stats.Usage[0].Total < 8<<20 || stats.Usage[1].Used == 0 {
			t.Errorf("got %v", stats)
		}
		r.restart()
		for range 2 {
			must(t, r.unpublish(q.VolumeId, "a"))
		}
		if left := r.driver.records.volumes.All(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		q.VolumeContext["size"] = "1e99999"
		_, err = r.node.NodePublishVolume(t.Context(), q)
		wantCode(t, err, codes.InvalidArgument, "size")
	}
}

// A block device is what it was when it comes back, and one place has it where its access mode says so.
func TestBlock(t *testing.T) {
	r, c := newRig(t), block()
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	id := r.create(request("n", typeLoop, c, 4<<20))
	r.up(id, "a", c)
	wantCode(t, r.publish(id, "b", c, false), codes.FailedPrecondition, "access mode")
	f, err := os.OpenFile(r.target("a"), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("data"), 4096)
	must(t, err)
	must(t, f.Close())
	r.restart()
	r.down(id, "a")
	r.up(id, "a", c)
	data := make([]byte, 4)
	f, err = os.Open(r.target("a"))
	must(t, err)
	_, err = f.ReadAt(data, 4096)
	must(t, err)
	must(t, f.Close())
	if string(data) != "data" {
		t.Errorf("got %q", data)
	}
	r.down(id, "a")
	must(t, r.remove(id))
}

// A record that cannot be read takes nothing with it, keeps its name, and its data stays.
func TestDamagedRecords(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "torn": `{"id":"v-`, "null": "null", "other": `{"id":"v-00000000000000000000000000000000"}`, "path": `{"id":"../x"}`} {
		t.Run(name, func(t *testing.T) {
			r, c := newRig(t), mounted("")
			bad, good := r.create(request("bad", typeDirectory, c, 1<<20)), r.create(request("good", typeDirectory, c, 1<<20))
			r.stop()
			write(t, filepath.Join(r.dir, "data", "records", "volumes", bad+".json"), text)
			r.start()
			r.restart()
			_, err := r.controller.CreateVolume(t.Context(), request("bad", typeDirectory, c, 1<<20))
			wantCode(t, err, codes.Internal, "cannot be read")
			wantCode(t, r.remove(bad), codes.Internal, "cannot be read")
			if _, err := os.Stat(filepath.Join(r.dir, "data", "volumes", bad)); err != nil {
				t.Error(err)
			}
			r.up(good, "a", c)
			r.down(good, "a")
			must(t, r.remove(good))
		})
	}
}

// What was being made or removed when the driver was killed is gone after the next start, and what is there stays.
func TestHalfMade(t *testing.T) {
	r, c := newRig(t), mounted("ext4")
	kept := r.create(request("kept", typeLoop, c, 16<<20))
	for _, state := range []record.State{record.Making, record.Removing} {
		for _, kind := range []string{typeDirectory, typeLoop} {
			id := r.create(request(string(state)+kind, kind, mounted(""), 16<<20))
			v, err := r.driver.records.volumes.Get(id)
			must(t, err)
			v.State = state
			must(t, r.driver.records.volumes.Put(v))
		}
	}
	write(t, filepath.Join(r.dir, "data", "records", "volumes", kept+".json.new"), "{")
	r.restart()
	all := r.driver.records.volumes.All()
	if len(all) != 1 || all[0].ID != kept {
		t.Errorf("there are %v", all)
	}
	images, err := os.ReadDir(filepath.Join(r.dir, "data", "images"))
	if err != nil || len(images) != 1 {
		t.Errorf("images: %v, %v", images, err)
	}
	must(t, r.remove(kept))
}

// Pages are whole however many are made and removed between them.
func TestPages(t *testing.T) {
	r := newRig(t)
	var ids []string
	for i := range 7 {
		ids = append(ids, r.create(request(fmt.Sprint(i), typeDirectory, mounted(""), 1<<20)))
	}
	slices.Sort(ids)
	var got []string
	token := ""
	for {
		page, err := r.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		must(t, err)
		for _, e := range page.Entries {
			got = append(got, e.Volume.VolumeId)
		}
		if token = page.NextToken; token == "" {
			break
		}
		must(t, r.remove(token)) // the last of the page
	}
	if !slices.Equal(got, ids) {
		t.Errorf("got %v, want %v", got, ids)
	}
	_, err := r.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "../x"})
	wantCode(t, err, codes.Aborted, "starting_token")
	_, err = r.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: -1})
	wantCode(t, err, codes.InvalidArgument, "max_entries")
	for _, id := range ids {
		must(t, r.remove(id))
	}
}
