package agent

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/plugin"
	"github.com/berth-node/berth/csi/csitest"
	"github.com/berth-node/berth/csi/node"
)

// TestVolumesShown wants volumes to be shown with what their driver says of them, and mounts that nobody knows of to be
// taken away where their driver is known.
func TestVolumesShown(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	d := csitest.Start(t, csitest.Options{AnyVolume: true, NodeID: "here", MaxVolumes: 7, Topology: map[string]string{"zone": "a"}})
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, csi := newProvisioning(t, root, madeForA)
	t.Cleanup(func() { csi.volumes.Close(); csi.drivers.Close() })
	o := d.Options()
	if err := (csiPlugins{csi.drivers}).Register(t.Context(), plugin.Plugin{Name: o.Name, Endpoint: o.Socket, Versions: []string{"1.0.0"}}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "pods", "u")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	r := node.Request{
		Volume: node.Volume{Driver: o.Name, Handle: "h", Name: "pv"}, Pod: node.Pod{Namespace: "default", Name: "p", UID: "u"}, PodDir: dir,
	}
	got, err := csi.volumes.Publish(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = csi.volumes.Release(t.Context(), dir) })
	shown := shownVolumes{csi, p.m}
	s := shown.State(t.Context())
	if len(s.Drivers) != 1 || s.Drivers[0].NodeID != "here" || *s.Drivers[0].MaxVolumes != 7 || s.Drivers[0].Volumes != 1 || s.Drivers[0].Topology["zone"] != "a" {
		t.Errorf("drivers are %+v", s.Drivers)
	}
	if len(s.Mounts) != 1 || s.Mounts[0].Used == nil || s.Mounts[0].Capacity <= 0 || s.Mounts[0].Healthy == nil || !*s.Mounts[0].Healthy ||
		s.Mounts[0].Pods[0].Pod != "default/p" {
		t.Errorf("mounts are %+v", s.Mounts)
	}
	if len(s.Claims) != 1 || s.Claims[0].Status != "Ready" {
		t.Errorf("claims are %+v", s.Claims)
	}
	// Something is mounted where only drivers mount.
	orphan := filepath.Join(dir, "volumes", "kubernetes.io~csi", "other", "mount")
	if err := os.MkdirAll(orphan, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(got.Path, orphan, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(orphan, unix.MNT_DETACH) })
	if all, err := shown.Undo(t.Context()); err != nil || len(all) != 1 || all[0].Undone || all[0].CanUndo || all[0].Path != orphan {
		t.Errorf("without a driver: %+v, %v", all, err)
	}
	data := `{"driverName":"` + o.Name + `","volumeHandle":"h"}`
	if err := os.WriteFile(filepath.Join(filepath.Dir(orphan), "vol_data.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := shown.Check(t.Context()); err != nil || len(all) != 1 || !all[0].CanUndo {
		t.Errorf("found %+v, %v", all, err)
	}
	if all, err := shown.Undo(t.Context()); err != nil || len(all) != 1 || !all[0].Undone {
		t.Errorf("with its driver: %+v, %v", all, err)
	}
	if all, err := shown.Check(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("there is still %+v, %v", all, err)
	}
}
