package csitest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// caller is a container orchestrator that does what it is told.
type caller struct {
	t    *testing.T
	d    *Driver
	root string
	node csi.NodeClient
	ctl  csi.ControllerClient
}

func call(t *testing.T, o Options) *caller {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes mounts")
	}
	o.Dir = t.TempDir()
	root := t.TempDir()
	o.Roots = []string{root}
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		if err := d.Reboot(); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+d.Options().Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Minute, Backoff: backoff.Config{BaseDelay: time.Millisecond, MaxDelay: 100 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &caller{t, d, root, csi.NewNodeClient(conn), csi.NewControllerClient(conn)}
}

func (c *caller) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c.t.Cleanup(cancel)
	return ctx
}

func access(block bool) *csi.VolumeCapability {
	v := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	if block {
		v.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return v
}

func (c *caller) create(block bool) *csi.Volume {
	c.t.Helper()
	out, err := c.ctl.CreateVolume(c.ctx(), &csi.CreateVolumeRequest{
		Name: "a", VolumeCapabilities: []*csi.VolumeCapability{access(block)}, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20},
	}, grpc.WaitForReady(true))
	if err != nil {
		c.t.Fatal(err)
	}
	return out.GetVolume()
}

func (c *caller) staging() string { return filepath.Join(c.root, "staging") }
func (c *caller) target() string  { return filepath.Join(c.root, "pod") }

func (c *caller) stage(v *csi.Volume, block bool) error {
	if err := os.MkdirAll(c.staging(), 0o750); err != nil {
		c.t.Fatal(err)
	}
	_, err := c.node.NodeStageVolume(c.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: c.staging(), VolumeCapability: access(block), VolumeContext: v.GetVolumeContext(),
	}, grpc.WaitForReady(true))
	return err
}

func (c *caller) publish(v *csi.Volume, block bool) error {
	_, err := c.node.NodePublishVolume(c.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: c.staging(), TargetPath: c.target(), VolumeCapability: access(block),
		VolumeContext: v.GetVolumeContext(),
	}, grpc.WaitForReady(true))
	return err
}

func (c *caller) unpublish(v *csi.Volume) error {
	_, err := c.node.NodeUnpublishVolume(c.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: c.target()},
		grpc.WaitForReady(true))
	return err
}

func (c *caller) unstage(v *csi.Volume) error {
	_, err := c.node.NodeUnstageVolume(c.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: c.staging()},
		grpc.WaitForReady(true))
	return err
}

func (c *caller) good(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) bad(err error, want codes.Code) {
	c.t.Helper()
	if status.Code(err) != want {
		c.t.Fatalf("got %v, want %s", err, want)
	}
}

// violated says whether the driver has seen that.
func (c *caller) violated(what string) {
	c.t.Helper()
	all := c.d.Violations()
	if !slices.ContainsFunc(all, func(v string) bool { return strings.Contains(v, what) }) {
		c.t.Errorf("no violation %q in %q", what, all)
	}
}

func (c *caller) expand(v *csi.Volume) {
	size := &csi.CapacityRange{RequiredBytes: 24 << 20}
	_, err := c.ctl.ControllerExpandVolume(c.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: v.GetVolumeId(), CapacityRange: size})
	c.good(err)
	_, err = c.node.NodeExpandVolume(c.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: c.target(), CapacityRange: size})
	c.good(err)
}

// resources says whether this process has CAP_SYS_RESOURCE, without which the kernel enlarges no ext4 that is mounted.
func resources() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestLife(t *testing.T) {
	for _, kind := range []Kind{Directory, Tmpfs, Loop} {
		for _, block := range []bool{false, true} {
			t.Run(string(kind)+map[bool]string{true: " block"}[block], func(t *testing.T) {
				c := call(t, Options{Kind: kind})
				if _, err := os.Stat("/dev/loop-control"); err != nil && (block || kind == Loop) {
					t.Skip("needs loop devices")
				}
				v := c.create(block)
				for range 2 { // each call is idempotent
					c.good(c.stage(v, block))
				}
				for range 2 {
					c.good(c.publish(v, block))
				}
				fi, err := os.Stat(c.target())
				c.good(err)
				if device := fi.Mode()&os.ModeDevice != 0; device != block {
					t.Errorf("the target is %s", fi.Mode())
				}
				_, err = c.node.NodeGetVolumeStats(c.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: c.target()})
				c.good(err)
				if kind != Loop || block || resources() {
					c.expand(v)
				}
				_, err = c.ctl.CreateSnapshot(c.ctx(), &csi.CreateSnapshotRequest{SourceVolumeId: v.GetVolumeId(), Name: "s"})
				if kind != Tmpfs || block {
					c.good(err)
				}
				for range 2 {
					c.good(c.unpublish(v))
				}
				for range 2 {
					c.good(c.unstage(v))
				}
				_, err = c.ctl.DeleteVolume(c.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
				c.good(err)
				if all := c.d.Violations(); len(all) > 0 {
					t.Error(all)
				}
				if mounted(c.target()) || mounted(c.staging()) || len(loops(c.d.store.image(v.GetVolumeId()))) > 0 {
					t.Error("something is left")
				}
			})
		}
	}
}

func TestViolations(t *testing.T) {
	c := call(t, Options{Secrets: map[string]map[string]string{"NodeStageVolume": {"key": "k"}}})
	v := c.create(false)
	c.bad(c.publish(v, false), codes.FailedPrecondition)
	c.violated("NodePublishVolume of v-a, which is not staged")
	c.good(c.stage(v, false))
	c.violated("NodeStageVolume of v-a has other secrets")
	c.bad(c.stage(v, true), codes.AlreadyExists)
	c.violated("with other arguments than before")
	c.good(c.publish(v, false))
	c.bad(c.unstage(v), codes.FailedPrecondition)
	c.violated("NodeUnstageVolume of v-a, which is published")
	_, err := c.ctl.DeleteVolume(c.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	c.bad(err, codes.FailedPrecondition)
	c.violated("DeleteVolume of v-a, which is in use")
	c.bad(c.stage(&csi.Volume{VolumeId: "other"}, false), codes.NotFound)
	c.violated("NodeStageVolume of other, which no volume is")
	_, err = c.node.NodeUnpublishVolume(c.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v-a", TargetPath: "/etc/x"})
	c.bad(err, codes.InvalidArgument)
	c.violated("/etc/x is outside of")
	_, err = c.node.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v-a", TargetPath: c.target()})
	c.good(err)
	c.violated("NodeUnpublishVolume of v-a has no deadline")
}

// TestTwoCalls wants a call to be seen that is made while another one is not answered, and none where the caller of
// that one has gone.
func TestTwoCalls(t *testing.T) {
	c := call(t, Options{})
	v := c.create(false)
	gate := make(chan struct{})
	c.d.Faults.Inject(Fault{RPC: "NodeStageVolume", Gate: gate, Deaf: true})
	first, giveUp := context.WithCancel(c.ctx())
	if err := os.MkdirAll(c.staging(), 0o750); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := c.node.NodeStageVolume(first, &csi.NodeStageVolumeRequest{
			VolumeId: v.GetVolumeId(), StagingTargetPath: c.staging(), VolumeCapability: access(false), VolumeContext: v.GetVolumeContext(),
		})
		answer <- err
	}()
	c.good(c.d.Await(c.ctx(), func(s State) bool {
		return slices.ContainsFunc(s.Calls, func(c Call) bool { return c.RPC == "NodeStageVolume" })
	}))
	giveUp()
	c.bad(<-answer, codes.Canceled)
	c.bad(c.stage(v, false), codes.Aborted)
	close(gate)
	c.good(c.d.Await(c.ctx(), func(s State) bool {
		return !slices.ContainsFunc(s.Calls, func(c Call) bool { return c.Code == "" })
	}))
	c.good(c.stage(v, false))
	if all := c.d.Violations(); len(all) > 0 {
		t.Error(all)
	}
}

// eventually calls until the driver has heard that the caller of the call before is gone, and the caller that the
// driver is.
func eventually(step func() error) error {
	for {
		if err := step(); status.Code(err) != codes.Aborted && status.Code(err) != codes.Unavailable {
			return err
		}
	}
}

func TestFaults(t *testing.T) {
	for _, when := range []When{Before, Within, After} {
		for name, f := range map[string]Fault{
			"code": {Code: codes.Internal}, "drop": {Drop: true}, "exit": {Exit: true},
		} {
			t.Run(string(when)+" "+name, func(t *testing.T) {
				c := call(t, Options{Respawn: true})
				v := c.create(false)
				f.When = when
				want := codes.Unavailable
				if f.Code != codes.OK {
					want = f.Code
				}
				steps := map[string]func() error{
					"NodeStageVolume":     func() error { return c.stage(v, false) },
					"NodePublishVolume":   func() error { return c.publish(v, false) },
					"NodeUnpublishVolume": func() error { return c.unpublish(v) },
					"NodeUnstageVolume":   func() error { return c.unstage(v) },
				}
				for _, rpc := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
					f.RPC = rpc
					c.d.Faults.Inject(f)
					c.bad(steps[rpc](), want)
					if f.Exit {
						<-c.d.Exits()
					}
					c.good(eventually(steps[rpc]))
				}
				if all := c.d.Violations(); len(all) > 0 {
					t.Error(all)
				}
			})
		}
	}
}

// TestRestart wants a driver that is opened again to know what it did.
func TestRestart(t *testing.T) {
	c := call(t, Options{})
	v := c.create(false)
	c.good(c.stage(v, false))
	c.d.Stop()
	again, err := Open(c.d.Options())
	c.good(err)
	c.good(again.Serve())
	defer again.Stop()
	c.good(eventually(func() error { return c.publish(v, false) }))
	c.good(c.unpublish(v))
	c.good(c.unstage(v))
	if all := again.Violations(); len(all) > 0 {
		t.Error(all)
	}
}
