package node

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi"
)

// TestLeftMounts: a driver that says that it has undone a volume and leaves mounts there, on each other and in each
// other, has them unmounted, and nothing that is in them is touched.
func TestLeftMounts(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	must(t, os.Mkdir(h.driver.source("v")+"/sub", 0o755))
	must(t, os.WriteFile(h.driver.source("v")+"/sub/precious", []byte("data"), 0o600))
	r := h.request("a", "v")
	path := h.publish(r)
	stage := h.ledger.layout.stage(&r.Volume)
	h.driver.fail(nil, func(_ context.Context, m string) error {
		at := map[string]string{"NodeUnpublishVolume": path, "NodeUnstageVolume": stage}[m]
		if at == "" {
			return nil
		}
		must(t, os.MkdirAll(at, 0o750))
		return errors.Join(bind(h.driver.source("v"), at), bind(h.driver.source("v"), at), bind(h.driver.source("v"), at+"/sub"),
			bind(h.driver.source("v"), at+"/sub/sub"))
	})
	must(t, h.Release(t.Context(), h.podDir("a")))
	if b, err := os.ReadFile(h.driver.source("v") + "/sub/precious"); string(b) != "data" {
		t.Errorf("it has %q, %v", b, err)
	}
	h.nothing()
}

// TestLink: a driver that puts a link where a volume is to be leads nobody there.
func TestLink(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	elsewhere := t.TempDir()
	must(t, os.WriteFile(elsewhere+"/kept", nil, 0o600))
	r := h.request("a", "v")
	path := h.ledger.layout.target(false, r.PodDir, r.Pod.UID, r.Name)
	lead := func(_ context.Context, m string) error {
		if m != "NodePublishVolume" {
			return nil
		}
		return errors.Join(unix.Unmount(path, 0), unix.Rmdir(path), os.Symlink(elsewhere, path))
	}
	h.driver.fail(nil, lead)
	if _, err := h.Publish(t.Context(), r); err == nil || !strings.Contains(err.Error(), "has put a link at "+path) {
		t.Errorf("error is %v", err)
	}
	h.called("NodeStageVolume NodePublishVolume NodeUnpublishVolume")
	if _, err := os.Lstat(path); err == nil {
		t.Error("the link stays")
	}
	h.driver.fail(nil, nil)
	h.open("")
	h.publish(r)
	must(t, lead(t.Context(), "NodePublishVolume"))
	if _, err := h.Publish(t.Context(), r); err == nil || !strings.Contains(err.Error(), "has put a link at "+path) {
		t.Errorf("later: error is %v", err)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	if _, err := os.Stat(elsewhere + "/kept"); err != nil {
		t.Error(err)
	}
	h.nothing()
}

// TestStrays: what drivers have made where no record tells of it is found, in volumes, beside them and below; what is
// mounted in a volume that a pod has is the pod's.
func TestStrays(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	must(t, os.Mkdir(h.driver.source("v")+"/sub", 0o755))
	path := h.publish(h.request("a", "v"))
	must(t, bind(h.driver.source("v"), path+"/sub"))
	found := func(want ...string) []Finding {
		t.Helper()
		all, err := h.Check(t.Context())
		must(t, err)
		var got []string
		for _, f := range all {
			rel, _ := filepath.Rel(h.root, f.Path)
			got = append(got, f.What+" "+rel)
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
		return all
	}
	found()
	must(t, unix.Unmount(path+"/sub", 0))
	must(t, h.Release(t.Context(), h.podDir("a")))

	pod := filepath.Join(h.root, "pods/a/volumes", pluginName, "x")
	shared := filepath.Join(h.ledger.layout.csi(), driverName, "y")
	must(t, os.MkdirAll(pod+"/mount/sub", 0o750))
	must(t, os.MkdirAll(shared+"/globalmount", 0o750))
	h.volume("w")
	must(t, bind(h.driver.source("w"), pod+"/mount/sub"))
	must(t, writeData(shared, data{Driver: driverName, Handle: "v"}))
	all := found("orphan plugins/kubernetes.io/csi/"+driverName+"/y/globalmount", "orphan pods/a/volumes/kubernetes.io~csi/x/mount/sub")
	if len(all) == 2 {
		if !all[0].CanUndo || all[0].Handle != "v" || all[1].CanUndo || all[1].Pod != "a" {
			t.Errorf("found %+v", all)
		}
		must(t, h.Undo(t.Context(), all[0]))
	}
	must(t, unix.Unmount(pod+"/mount/sub", 0))
	must(t, os.RemoveAll(filepath.Dir(pod)))
	found()
	h.nothing()
}

// TestLaterIsNoOrphan: what a record of a later version tells of is not taken for an orphan, and not undone as one.
func TestLaterIsNoOrphan(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	r := h.request("a", "v")
	path := h.publish(r)
	before, err := os.ReadFile(h.recordPath("v"))
	must(t, err)
	must(t, os.WriteFile(h.recordPath("v"), []byte(`{"version":2,"driver":"`+driverName+`"}`), 0o600))
	h.open("")
	h.driver.said()
	found, err := h.Check(t.Context())
	if err != nil || len(found) != 1 || found[0].What != Damaged {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := h.Undo(t.Context(), Finding{What: Orphan, Driver: driverName, Handle: "v", Path: path}); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("it is undone: %v", err)
	}
	h.called("")
	must(t, os.WriteFile(h.recordPath("v"), before, 0o600))
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestEachBit has each bit of a record turn over: what is to be undone is as it was, or it is known that it may not be,
// and undone as far as it can be made out.
func TestEachBit(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	want := h.List()
	text, err := os.ReadFile(h.recordPath("v"))
	must(t, err)
	for i := 0; i < 8*len(text); i++ {
		turned := slices.Clone(text)
		turned[i/8] ^= 1 << (i % 8)
		r, err := decode(turned, h.ledger.layout)
		if err != nil {
			continue
		}
		v := &entry{record: r, note: h.ledger.entries[key(driverName, "v")].note}
		if got := v.state(); len(want) != 1 || got.Handle != want[0].Handle || got.StagePath != want[0].StagePath || !slices.Equal(got.Uses, want[0].Uses) {
			t.Errorf("bit %d: %s says %+v", i, turned, got)
		}
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestClaimed: a driver that cannot do what it says is named, and leaves nothing behind; one that says that it cannot
// measure, or measures nonsense, tells nothing.
func TestClaimed(t *testing.T) {
	for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"} {
		t.Run(method, func(t *testing.T) {
			h := newHouse(t, func(d *dirDriver) {
				d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
			})
			h.volume("v")
			undo := map[string]string{
				"ControllerPublishVolume": "ControllerUnpublishVolume", "NodeStageVolume": "NodeUnstageVolume", "NodePublishVolume": "NodeUnpublishVolume",
			}[method]
			h.driver.fail(func(_ context.Context, m string) error {
				if m == method || m == undo && m != "NodeUnpublishVolume" {
					return status.Error(codes.Unimplemented, "unknown method")
				}
				return nil
			}, nil)
			if _, err := h.Publish(t.Context(), h.request("a", "v")); err == nil || !strings.Contains(err.Error(), method+" of CSI driver "+driverName) {
				t.Errorf("error is %v", err)
			}
			must(t, h.Release(t.Context(), h.podDir("a")))
			h.nothing()
		})
	}
}

// TestNonsense: figures that are below nothing are not known.
func TestNonsense(t *testing.T) {
	var s Stats
	s.take(&spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Available: math.MinInt64, Total: math.MaxInt64, Used: -1},
		nil,
		{Unit: 99, Used: 5},
		{Unit: spec.VolumeUsage_INODES, Available: -1, Total: -1, Used: math.MinInt64},
	}}, true)
	if want := (Stats{Bytes: Usage{-1, math.MaxInt64, -1}, Inodes: Usage{-1, -1, -1}}); s != want {
		t.Errorf("%+v", s)
	}
	if c := conditionOf(&spec.VolumeHealth{HealthStatuses: []*spec.VolumeHealth_VolumeHealthEntry{nil, {Status: -7, Message: strings.Repeat("\x1b[2J", 1<<20)}}}); len(c.Message) > 1<<10 || strings.Contains(c.Message, "\x1b") {
		t.Errorf("%d bytes: %.100q", len(c.Message), c.Message)
	}
	if err := csi.CheckName(strings.Repeat("a", 1<<20)); err == nil || len(err.Error()) > 2<<10 {
		t.Errorf("%v", err)
	}
}

// TestLeftPeers: a driver that gives a pod a directory of the node with what is mounted in it, and leaves that there,
// has it unmounted from the pod alone. The two share their mounts, as all do where systemd is the init.
func TestLeftPeers(t *testing.T) {
	h := newHouse(t)
	host := t.TempDir()
	must(t, unix.Mount("host", host, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
	must(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	for _, dir := range []string{"disk", "disk/inner"} {
		at := filepath.Join(host, dir)
		must(t, os.Mkdir(at, 0o755))
		must(t, unix.Mount("disk", at, "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	must(t, os.WriteFile(filepath.Join(host, "disk/inner/precious"), []byte("data"), 0o600))
	h.volume("v")
	path := h.publish(h.request("a", "v"))
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m != "NodeUnpublishVolume" {
			return nil
		}
		return errors.Join(os.MkdirAll(path, 0o750), unix.Mount(host, path, "", unix.MS_BIND|unix.MS_REC, ""))
	})
	must(t, h.Release(t.Context(), h.podDir("a")))
	if b, err := os.ReadFile(filepath.Join(host, "disk/inner/precious")); string(b) != "data" {
		t.Errorf("on the node there is %q, %v", b, err)
	}
	h.nothing()
}
