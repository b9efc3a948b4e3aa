package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/local/record"
)

// damages are what becomes of a file on a failing disk, or by somebody's hand.
var damages = map[string]func(t *testing.T, path string){
	"flipped": func(t *testing.T, path string) {
		data, err := os.ReadFile(path)
		must(t, err)
		// That a volume is ready, so that it says that it was never made.
		i := strings.Index(string(data), `"ready"`)
		data[max(i, 0)+1] ^= 1
		write(t, path, string(data))
	},
	"halved": func(t *testing.T, path string) {
		st, err := os.Stat(path)
		must(t, err)
		must(t, os.Truncate(path, st.Size()/2))
	},
	"emptied": func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) },
	"removed": func(t *testing.T, path string) { must(t, os.Remove(path)) },
}

// What the record of a volume told of stays, whatever becomes of the record: nobody gets another volume by its name,
// and nobody removes it. All others go on. The pod that has it can end.
func TestDamagedVolume(t *testing.T) {
	for damage, do := range damages {
		for _, kind := range []string{typeDirectory, typeLoop} {
			t.Run(damage+" "+kind, func(t *testing.T) {
				r, c := newRig(t), mounted("")
				id, other := r.create(request("n", kind, c, 8<<20)), r.create(request("other", kind, c, 8<<20))
				r.up(id, "a", c)
				r.up(other, "b", c)
				write(t, filepath.Join(r.target("a"), "f"), "data")
				r.stop()
				do(t, filepath.Join(r.dir, "data", "records", "volumes", id+".json"))
				for range 2 {
					r.start()
					_, err := r.controller.CreateVolume(t.Context(), request("n", kind, c, 8<<20))
					wantCode(t, err, codes.Internal, record.ErrDamaged.Error())
					wantCode(t, r.remove(id), codes.FailedPrecondition, "in use")
					wantCode(t, r.stage(id, c), codes.Internal, record.ErrDamaged.Error())
					wantText(t, filepath.Join(r.target("a"), "f"), "data")
					must(t, r.publish(other, "b", c, false))
					r.stop()
				}
				r.start()
				r.down(id, "a")
				wantCode(t, r.remove(id), codes.Internal, record.ErrDamaged.Error())
				r.down(other, "b")
				must(t, r.remove(other))
				dir := map[string]string{typeDirectory: "volumes", typeLoop: "images"}[kind]
				if _, err := os.Lstat(filepath.Join(r.dir, "data", dir, id)); err != nil {
					t.Errorf("the data is gone: %v", err)
				}
				// To give it up.
				r.stop()
				kept, err := filepath.Glob(filepath.Join(r.dir, "data", "quarantine", "*"))
				must(t, err)
				for _, path := range append(kept, filepath.Join(r.dir, "data", dir, id)) {
					must(t, os.RemoveAll(path))
				}
				r.start()
				must(t, r.remove(r.create(request("n", kind, c, 8<<20))))
			})
		}
	}
}

// A snapshot and a group whose records are damaged stay with their data, and what they are of goes on.
func TestDamagedSnapshot(t *testing.T) {
	for damage, do := range damages {
		for _, what := range []string{"snapshots", "groups"} {
			t.Run(damage+" "+what, func(t *testing.T) {
				r, c := newRig(t), mounted("")
				id := r.create(request("n", typeLoop, c, 4<<20))
				made, err := r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
				must(t, err)
				group, err := r.groups.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{id}})
				must(t, err)
				of := map[string]string{"snapshots": made.Snapshot.SnapshotId, "groups": group.GroupSnapshot.GroupSnapshotId}[what]
				r.stop()
				do(t, filepath.Join(r.dir, "data", "records", what, of+".json"))
				r.start()
				if what == "snapshots" {
					_, err = r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
					wantCode(t, err, codes.Internal, record.ErrDamaged.Error())
					_, err = r.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: of})
					wantCode(t, err, codes.Internal, record.ErrDamaged.Error())
				} else if damage != "removed" { // a group that is lost is none: its snapshots are there
					_, err = r.groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: of})
					wantCode(t, err, codes.Internal, record.ErrDamaged.Error())
				}
				if left, err := os.ReadDir(filepath.Join(r.dir, "data", "images")); err != nil || len(left) != 3 {
					t.Errorf("images: %v, %v", left, err)
				}
				r.up(id, "a", c)
				r.down(id, "a")
				must(t, r.remove(id))
			})
		}
	}
}

// Where it is not known any more where volumes are mounted, the kernel is asked: they are not deleted, not copied while
// they are written to, and are taken away by who asks for that.
func TestDamagedUse(t *testing.T) {
	for damage, do := range damages {
		for _, kind := range []string{typeDirectory, typeLoop, "btrfs", "block"} {
			t.Run(damage+" "+kind, func(t *testing.T) {
				r := newRig(t)
				q := request("n", typeLoop, mounted("ext4"), 4<<20)
				switch kind {
				case typeDirectory:
					q = request("n", kind, mounted(""), 4<<20)
				case "btrfs":
					q = request("n", typeLoop, mounted(kind), 128<<20)
				case "block":
					q = request("n", typeLoop, block(), 4<<20)
				}
				c, id := q.VolumeCapabilities[0], r.create(q)
				r.up(id, "a", c)
				if kind != "block" {
					write(t, filepath.Join(r.target("a"), "f"), "data")
				}
				r.stop()
				boot, err := bootID()
				must(t, err)
				do(t, filepath.Join(r.dir, "data", "mounted", boot, "uses", id+".json"))
				for range 2 {
					r.start()
					wantCode(t, r.remove(id), codes.FailedPrecondition, "in use")
					_, err = r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
					wantCode(t, err, codes.FailedPrecondition, "mounted")
					if kind != "block" {
						wantText(t, filepath.Join(r.target("a"), "f"), "data")
					}
					r.stop()
				}
				r.start()
				r.down(id, "a")
				must(t, r.remove(id))
			})
		}
	}
}
