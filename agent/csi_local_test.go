package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/local"
)

// The agent's own driver is there once somebody has asked for it, and does what its CSIDriver object says, which a
// manifest's replaces.
func TestLocalDriver(t *testing.T) {
	objects, log := new(object.Stores), slog.New(slog.DiscardHandler)
	c := csiSettings{place: config.Place{RootDir: t.TempDir()}, node: "node", version: "7", csi: config.Default().CSI}
	v, err := openCSI(c, objects, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if _, err := v.drivers.Get(local.Name); err == nil {
		t.Error("it is there, and nobody has asked for it")
	}
	<-v.changed
	d, err := v.drivers.Get(local.Name)
	if err != nil || d.NodeID != "node" || d.Vendor != "7" {
		t.Fatalf("%+v, %v", d, err)
	}
	o, err := v.object(desired.File, local.Name)
	if err != nil || *o.Spec.AttachRequired || len(o.Spec.VolumeLifecycleModes) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	given := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: local.Name}}
	objects.Of(desired.File).Put(object.RefTo(object.CSIDriver, "", local.Name), given)
	if o, err := v.object(desired.File, local.Name); err != nil || o != given {
		t.Errorf("with one of a manifest: %+v, %v", o, err)
	}
	if o, err := v.object(desired.File, "other.example.com"); err == nil {
		t.Errorf("of another driver: %+v", o)
	}
}

// Who asks for the agent's own driver is told why it is not there.
func TestLocalDriverBusy(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	c := csiSettings{place: config.Place{RootDir: t.TempDir()}, node: "node", csi: config.Default().CSI}
	other, err := local.Open(t.Context(), local.Config{
		DataDir: filepath.Join(c.place.RootDir, localDir), NodeID: "other", Overcommit: 1, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	v, err := openCSI(c, new(object.Stores), log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { v.volumes.Close(); v.drivers.Close() }()
	if err := v.own.serve(t.Context(), v.drivers); err == nil || !strings.Contains(err.Error(), "another driver runs") {
		t.Errorf("two run on one directory: %v", err)
	}
}
