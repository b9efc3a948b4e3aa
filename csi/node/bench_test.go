package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/local"
)

// BenchmarkDirectory is what a pod waits for whose volume is a directory of the built-in driver, by way of the agent:
// what is recorded, the calls, stage and publish. Each pod is the first that has the volume.
func BenchmarkDirectory(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: mounts")
	}
	root := b.TempDir()
	d, err := local.Open(b.Context(), local.Config{DataDir: filepath.Join(root, "data"), NodeID: "here", Overcommit: 1, Log: slog.New(slog.DiscardHandler)})
	must(b, err)
	inside := local.NewInside()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.ServeOn(ctx, inside) }()
	drivers := csi.NewDrivers(csi.Config{})
	must(b, drivers.Register(b.Context(), csi.Registration{Name: local.Name, Endpoint: "inside", Dial: inside.Dial, Versions: []string{"1.0.0"}}))
	driver, err := drivers.Get(local.Name)
	must(b, err)
	made, err := driver.Client().Controller().CreateVolume(b.Context(), &spec.CreateVolumeRequest{
		Name: "v", CapacityRange: &spec.CapacityRange{RequiredBytes: 1 << 20}, VolumeCapabilities: []*spec.VolumeCapability{{
			AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		}},
	})
	must(b, err)
	m, err := New(Config{Root: root, Drivers: drivers, Node: "here"})
	must(b, err)
	r := Request{
		Volume: Volume{Driver: local.Name, Handle: made.Volume.VolumeId, Name: "v", AccessMode: ReadWriteOnce},
		Pod:    Pod{Namespace: "default", Name: "p", UID: "u"}, PodDir: filepath.Join(root, "pods", "u"),
	}
	must(b, os.MkdirAll(r.PodDir, 0o755))
	for b.Loop() {
		_, err := m.Publish(b.Context(), r)
		must(b, err)
		b.StopTimer()
		must(b, m.Release(b.Context(), r.PodDir))
		b.StartTimer()
	}
	m.Close()
	_, err = driver.Client().Controller().DeleteVolume(b.Context(), &spec.DeleteVolumeRequest{VolumeId: r.Handle})
	must(b, err)
	drivers.Close()
	cancel()
	must(b, <-ended)
	must(b, d.Close())
}
