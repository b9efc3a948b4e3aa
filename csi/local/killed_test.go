package local

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const killedEnv = "CSI_LOCAL_KILLED"

// TestProcess is the driver of TestKilled, in a process of its own.
func TestProcess(t *testing.T) {
	dir := os.Getenv(killedEnv)
	if dir == "" {
		t.Skip("TestKilled runs it")
	}
	d, err := Open(context.Background(), Config{DataDir: filepath.Join(dir, "data"), NodeID: "here", Overcommit: 1, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, d.Run(context.Background(), "unix://"+filepath.Join(dir, "csi.sock"), ""))
}

// A driver that is killed at any moment of any call goes on where it was: who repeats his calls has his volume in the
// end, with its data, and what nobody wants is gone.
func TestKilled(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.stop = func() {}
	conn, err := grpc.NewClient("unix:"+filepath.Join(r.dir, "csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	r.controller, r.node = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	killer := make(chan struct{})
	go func() { // one driver after the other, each killed after a while
		defer close(killer)
		for range 25 {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess$")
			cmd.Env = append(os.Environ(), killedEnv+"="+r.dir)
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	c := mounted("ext4")
	for round := 0; ; round++ {
		select {
		case <-killer:
			r.afterKills()
			return
		default:
			r.roundOfKills(round, killer, c)
		}
	}
}

// insist repeats a call until it has an answer, or no driver comes any more.
func insist(over <-chan struct{}, call func() error) error {
	for {
		err := call()
		if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
			return err
		}
		select {
		case <-over:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// roundOfKills is the life of one volume, with a snapshot of it.
func (r *rig) roundOfKills(round int, over <-chan struct{}, c *csi.VolumeCapability) {
	name, id, shot := fmt.Sprint(round), "", ""
	ctx := r.t.Context()
	for _, step := range []func() error{
		func() error {
			made, err := r.controller.CreateVolume(ctx, request(name, typeLoop, c, 8<<20))
			id = made.GetVolume().GetVolumeId()
			return err
		},
		func() error { return r.stage(id, c) },
		func() error { return r.publish(id, name, c, false) },
		func() error { return os.WriteFile(filepath.Join(r.target(name), "f"), []byte(name), 0o600) },
		func() error {
			made, err := r.controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
			shot = made.GetSnapshot().GetSnapshotId()
			return err
		},
		func() error { return r.unpublish(id, name) },
		func() error { return r.unstage(id) },
		func() error { return r.stage(id, c) },
		func() error { return r.publish(id, name, c, false) },
		func() error {
			if data, err := os.ReadFile(filepath.Join(r.target(name), "f")); err != nil || string(data) != name {
				return fmt.Errorf("the volume has %q, %w", data, err)
			}
			return nil
		},
		func() error { return r.unpublish(id, name) },
		func() error { return r.unstage(id) },
		func() error { return r.remove(id) },
		func() error {
			_, err := r.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: shot})
			return err
		},
	} {
		err := insist(over, step)
		select {
		case <-over: // no driver answers any more, and what was begun is looked at by the next
			return
		default:
		}
		if err != nil {
			r.t.Errorf("round %d: %v", round, err)
			return
		}
	}
}

// afterKills takes away what the last round has left, as whoever asked for it would, and looks that nothing else is
// there.
func (r *rig) afterKills() {
	r.t.Helper()
	r.start()
	for _, u := range r.driver.records.uses.All() {
		for target := range u.Targets {
			_, err := r.node.NodeUnpublishVolume(r.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: u.Volume, TargetPath: target})
			must(r.t, err)
		}
		if u.Staging != "" {
			must(r.t, r.unstage(u.Volume))
		}
	}
	for _, v := range r.driver.records.volumes.All() {
		must(r.t, r.remove(v.ID))
	}
	for _, s := range r.driver.records.snaps.All() {
		_, err := r.controller.DeleteSnapshot(r.t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: s.ID})
		must(r.t, err)
	}
	for _, dir := range []string{"images", "volumes", "records/volumes", "records/snapshots", "quarantine"} {
		left, err := os.ReadDir(filepath.Join(r.dir, "data", dir))
		if err != nil || len(left) > 0 {
			r.t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
}
