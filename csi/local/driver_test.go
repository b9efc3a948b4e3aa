package local

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-node/berth/internal/loop"
	"github.com/berth-node/berth/internal/mount"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a driver and who calls it.
type rig struct {
	t          testing.TB
	dir        string
	group      string // of LVM
	driver     *Driver
	controller csi.ControllerClient
	node       csi.NodeClient
	groups     csi.GroupControllerClient
	identity   csi.IdentityClient
	stop       func()
}

// newRig starts a driver on a directory of the test. In the end nothing may be mounted there, and no loop device be
// left.
func newRig(t testing.TB) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	return rigOn(t, t.TempDir())
}

func rigOn(t testing.TB, dir string) *rig {
	t.Helper()
	r := &rig{t: t, dir: dir}
	r.start()
	t.Cleanup(func() {
		r.stop()
		left, err := mount.Under(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("mounts left: %v %v", left, err)
			_ = mount.UnmountUnder(dir)
		}
		loops, err := loopsLeft(filepath.Join(dir, "data", "images"))
		if err != nil || len(loops) > 0 {
			t.Errorf("loop devices left: %v %v", loops, err)
			for _, l := range loops {
				_ = loop.Detach(l.Image)
			}
		}
	})
	return r
}

// loopsLeft are the devices of images once the kernel has taken away those that it is about to: a mount namespace that
// somebody made meanwhile has a copy of each mount, until it goes.
func loopsLeft(dir string) (left []loop.Attached, err error) {
	for range 1000 {
		if left, err = loop.Under(dir); err != nil || len(left) == 0 {
			return nil, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return left, nil
}

func (r *rig) config() Config {
	return Config{DataDir: filepath.Join(r.dir, "data"), NodeID: "here", Overcommit: 1, VolumeGroup: r.group, ThinPool: "berth", Log: slog.New(slog.DiscardHandler)}
}

// start starts the driver, or the next one after stop.
func (r *rig) start() {
	r.t.Helper()
	d, err := Open(context.Background(), r.config())
	must(r.t, err)
	r.driver = d
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.UnaryInterceptor(decorator{d.cfg.Log}.unary))
	d.Register(s)
	go s.Serve(l)
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	must(r.t, err)
	r.controller, r.node = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	r.groups, r.identity = csi.NewGroupControllerClient(conn), csi.NewIdentityClient(conn)
	r.stop = func() {
		conn.Close()
		s.Stop()
		d.Close()
	}
}

func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.start()
}

func mounted(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

// request asks for a volume of a type.
func request(name, kind string, c *csi.VolumeCapability, bytes int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{c}, Parameters: map[string]string{"type": kind},
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	}
}

func (r *rig) create(q *csi.CreateVolumeRequest) string {
	r.t.Helper()
	made, err := r.controller.CreateVolume(r.t.Context(), q)
	must(r.t, err)
	return made.Volume.VolumeId
}

func (r *rig) staging(id string) string {
	return filepath.Join(r.dir, "staging-"+strings.ReplaceAll(id, "/", "_"))
}
func (r *rig) target(name string) string { return filepath.Join(r.dir, "target-"+name) }

func (r *rig) stage(id string, c *csi.VolumeCapability) error {
	_, err := r.node.NodeStageVolume(r.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: r.staging(id), VolumeCapability: c})
	return err
}

func (r *rig) publish(id, name string, c *csi.VolumeCapability, readOnly bool) error {
	_, err := r.node.NodePublishVolume(r.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: r.staging(id), TargetPath: r.target(name), VolumeCapability: c, Readonly: readOnly,
	})
	return err
}

func (r *rig) unpublish(id, name string) error {
	_, err := r.node.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: r.target(name)})
	return err
}

func (r *rig) unstage(id string) error {
	_, err := r.node.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: r.staging(id)})
	return err
}

func (r *rig) remove(id string) error {
	_, err := r.controller.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

// up has a volume be published.
func (r *rig) up(id, name string, c *csi.VolumeCapability) {
	r.t.Helper()
	must(r.t, r.stage(id, c))
	must(r.t, r.publish(id, name, c, false))
}

// down takes it all away again.
func (r *rig) down(id string, names ...string) {
	r.t.Helper()
	for _, name := range names {
		must(r.t, r.unpublish(id, name))
	}
	must(r.t, r.unstage(id))
}

func wantCode(t testing.TB, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), says) {
		t.Errorf("got %v, want %s that says %q", err, code, says)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

func wantText(t testing.TB, path, text string) {
	t.Helper()
	if data, err := os.ReadFile(path); err != nil || string(data) != text {
		t.Errorf("%s: %q, %v; want %q", path, data, err, text)
	}
}

// A volume goes its whole way, each step twice, and what was written is there again.
func TestWay(t *testing.T) {
	for _, kind := range []struct{ kind, fs string }{{typeDirectory, ""}, {typeLoop, "ext4"}, {typeLoop, "xfs"}, {typeLoop, "btrfs"}} {
		t.Run(kind.kind+kind.fs, func(t *testing.T) {
			r, c := newRig(t), mounted(kind.fs)
			q := request("pvc-1", kind.kind, c, 320<<20)
			id := r.create(q)
			if again := r.create(q); again != id {
				t.Errorf("the same name has %s and %s", id, again)
			}
			for range 2 {
				r.up(id, "a", c)
			}
			write(t, filepath.Join(r.target("a"), "f"), "data")
			wantCode(t, r.remove(id), codes.FailedPrecondition, "in use")
			wantCode(t, r.unstage(id), codes.FailedPrecondition, "published")
			must(t, r.publish(id, "b", c, true))
			if err := os.WriteFile(filepath.Join(r.target("b"), "g"), nil, 0o600); err == nil {
				t.Error("a read-only volume was written to")
			}
			for range 2 {
				must(t, r.unpublish(id, "a"))
				must(t, r.unpublish(id, "b"))
			}
			must(t, r.unstage(id))
			must(t, r.unstage(id))
			r.restart()
			r.up(id, "a", c)
			wantText(t, filepath.Join(r.target("a"), "f"), "data")
			r.restart()
			r.down(id, "a")
			must(t, r.remove(id))
			must(t, r.remove(id))
		})
	}
}
