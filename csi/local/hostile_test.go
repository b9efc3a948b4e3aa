package local

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// What is asked for by a name that is a path becomes a volume like any other, with nothing outside of the data
// directory.
func TestHostileNames(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"../../../../etc/x", "/etc/passwd", "a/b", ".", "..", "\x00", "name\nwith", strings.Repeat("n", maxName), "%2e%2e", "é"} {
		id := r.create(request(name, typeDirectory, mounted(""), 1<<20))
		if got, err := filepath.Glob(filepath.Join(r.dir, "data", "volumes", id)); err != nil || len(got) != 1 {
			t.Errorf("%q is at %v", name, got)
		}
		must(t, r.remove(id))
	}
	left, err := os.ReadDir(filepath.Join(r.dir, "data", "volumes"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, id := range []string{"../../x", "/", "v-../..", "v-" + strings.Repeat("0", 32), strings.Repeat("x", maxName)} {
		must(t, r.remove(id)) // of what is not there nothing is removed
		_, err := r.controller.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		wantCode(t, err, codes.NotFound, "")
	}
}

// What cannot be is refused, by the field that it is in.
func TestHostileRequests(t *testing.T) {
	r := newRig(t)
	good := func() *csi.CreateVolumeRequest { return request("n", typeDirectory, mounted(""), 1<<20) }
	for name, one := range map[string]struct {
		change func(q *csi.CreateVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no name":        {func(q *csi.CreateVolumeRequest) { q.Name = "" }, codes.InvalidArgument, "name"},
		"long name":      {func(q *csi.CreateVolumeRequest) { q.Name = strings.Repeat("x", maxName+1) }, codes.InvalidArgument, "name"},
		"no capability":  {func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities = nil }, codes.InvalidArgument, "volume_capabilities"},
		"nil capability": {func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities = []*csi.VolumeCapability{{}} }, codes.InvalidArgument, "access_type"},
		"negative":       {func(q *csi.CreateVolumeRequest) { q.CapacityRange.RequiredBytes = -1 }, codes.InvalidArgument, "required_bytes"},
		"negative limit": {func(q *csi.CreateVolumeRequest) { q.CapacityRange.LimitBytes = math.MinInt64 }, codes.InvalidArgument, "limit_bytes"},
		"limit first":    {func(q *csi.CreateVolumeRequest) { q.CapacityRange.LimitBytes = 1 }, codes.InvalidArgument, "required_bytes"},
		"huge":           {func(q *csi.CreateVolumeRequest) { q.CapacityRange.RequiredBytes = math.MaxInt64 }, codes.OutOfRange, "capacity_range"},
		"no space":       {func(q *csi.CreateVolumeRequest) { q.CapacityRange.RequiredBytes = 8 << 40 }, codes.ResourceExhausted, "promised"},
		"parameter":      {func(q *csi.CreateVolumeRequest) { q.Parameters["size"] = "x" }, codes.InvalidArgument, "size"},
		"type":           {func(q *csi.CreateVolumeRequest) { q.Parameters["type"] = "../x" }, codes.InvalidArgument, "type"},
		"quota":          {func(q *csi.CreateVolumeRequest) { q.Parameters["quota"] = "maybe" }, codes.InvalidArgument, "quota"},
		"no group":       {func(q *csi.CreateVolumeRequest) { q.Parameters["type"] = "lvm" }, codes.InvalidArgument, "--volume-group"},
		"block dir":      {func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities[0] = block() }, codes.InvalidArgument, "directory"},
		"both":           {func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities = append(q.VolumeCapabilities, block()) }, codes.InvalidArgument, "both"},
		"fs": {func(q *csi.CreateVolumeRequest) {
			q.Parameters["type"], q.VolumeCapabilities[0] = typeLoop, mounted("ext4/../x")
		}, codes.InvalidArgument, "fs_type"},
		"encrypted dir": {func(q *csi.CreateVolumeRequest) { q.Parameters["encryption"] = "luks" }, codes.InvalidArgument, "encryption"},
		"other node": {func(q *csi.CreateVolumeRequest) {
			q.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{TopologyKey: "there"}}}}
		}, codes.ResourceExhausted, "accessibility_requirements"},
		"many nodes": {func(q *csi.CreateVolumeRequest) {
			q.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, "access_mode"},
		"flag": {func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities[0].GetMount().MountFlags = []string{"ro,bind"} }, codes.InvalidArgument, "mount_flags"},
		"loop flag": {func(q *csi.CreateVolumeRequest) {
			q.VolumeCapabilities[0].GetMount().MountFlags = []string{"loop=/dev/sda"}
		}, codes.InvalidArgument, "mount_flags"},
		"flags": {func(q *csi.CreateVolumeRequest) {
			q.VolumeCapabilities[0].GetMount().MountFlags = []string{strings.Repeat("x", maxFlags+1)}
		}, codes.InvalidArgument, "mount_flags"},
		"group":   {func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities[0].GetMount().VolumeMountGroup = "-1" }, codes.InvalidArgument, "volume_mount_group"},
		"mutable": {func(q *csi.CreateVolumeRequest) { q.MutableParameters = map[string]string{"type": "loop"} }, codes.InvalidArgument, "mutable_parameters"},
		"source": {func(q *csi.CreateVolumeRequest) {
			q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "../x"}}}
		}, codes.NotFound, "source"},
		"empty source": {func(q *csi.CreateVolumeRequest) { q.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument, "volume_content_source"},
	} {
		t.Run(name, func(t *testing.T) {
			q := good()
			one.change(q)
			_, err := r.controller.CreateVolume(t.Context(), q)
			wantCode(t, err, one.code, one.says)
		})
	}
	if left := r.driver.records.volumes.All(); len(left) > 0 {
		t.Errorf("records are left: %v", left)
	}
}

// Mount points are where the caller says, and nowhere that is the driver's own.
func TestHostilePaths(t *testing.T) {
	r, c := newRig(t), mounted("")
	id := r.create(request("n", typeDirectory, c, 1<<20))
	for _, path := range []string{"", "relative", "/", "/a/../b", r.dir + "/data", r.dir + "/data/volumes/" + id, r.dir + "/data/x"} {
		_, err := r.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: c})
		wantCode(t, err, codes.InvalidArgument, "staging_target_path")
		_, err = r.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: r.staging(id), TargetPath: path, VolumeCapability: c})
		wantCode(t, err, codes.InvalidArgument, "target_path")
	}
	// A link is not followed to what it leads to, neither to mount there nor to unmount.
	victim := filepath.Join(r.dir, "victim")
	must(t, os.Mkdir(victim, 0o755))
	must(t, os.Symlink(victim, r.target("link")))
	must(t, r.stage(id, c))
	if err := r.publish(id, "link", c, false); err == nil {
		t.Error("a volume was published at a link")
	}
	must(t, os.RemoveAll(r.target("link")))
	// What is in a mount point is not removed with it.
	must(t, os.MkdirAll(filepath.Join(r.target("full"), "kept"), 0o755))
	if err := r.unpublish(id, "full"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(r.target("full"), "kept")); err != nil {
		t.Error(err)
	}
	r.down(id)
	must(t, r.remove(id))
}
