package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
)

// TestAttachedByOthers wants what others have said of an attachment to reach the driver, to be asked for only when that
// is called, and no controller to be asked here.
func TestAttachedByOthers(t *testing.T) {
	h := newHouse(t, func(d *dirDriver) {
		d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	})
	h.volume("v")
	r := h.request("a", "v")
	waiting, asked := errors.New("not attached yet"), 0
	r.Attached = true
	r.Complete = func(context.Context, *Request) error { asked++; return waiting }
	for range 3 { // it is no failure that the next try has to wait after
		if _, err := h.Publish(t.Context(), r); !errors.Is(err, waiting) {
			t.Fatal(err)
		}
	}
	h.called("")
	h.nothing()
	r.Complete = func(_ context.Context, r *Request) error {
		asked++
		r.PublishContext, r.Tokens = map[string]string{"device": "sdx"}, "hush-hush"
		return nil
	}
	h.publish(r)
	stage, publish := h.driver.last("NodeStageVolume").(*spec.NodeStageVolumeRequest), h.driver.last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	if stage.PublishContext["device"] != "sdx" || publish.PublishContext["device"] != "sdx" || publish.VolumeContext[csi.TokensKey] != "hush-hush" || stage.VolumeContext[csi.TokensKey] != "" {
		t.Errorf("staged with %v, published with %v", stage, publish)
	}
	h.publish(r) // it is there
	if asked != 4 {
		t.Errorf("asked %d times", asked)
	}
	h.called("NodeStageVolume NodePublishVolume")
	files, err := filepath.Glob(filepath.Join(h.root, "csi", "*"))
	must(t, err)
	for _, f := range files {
		if data, _ := os.ReadFile(f); strings.Contains(string(data), "hush") {
			t.Errorf("%s has the token", f)
		}
	}
	r = h.request("b", "v")
	r.Complete = func(_ context.Context, r *Request) error {
		r.PublishContext = map[string]string{"a": strings.Repeat("x", maxContext+1)}
		return nil
	}
	if _, err := h.Publish(t.Context(), r); err == nil || !strings.Contains(err.Error(), "publish_context has more") {
		t.Errorf("%v", err)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.called("NodeUnpublishVolume NodeUnstageVolume")
	h.nothing()
}
