package node

import (
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// TestExpand expands a volume while a pod has it, and one that none has with the next.
func TestExpand(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	e := Expansion{Driver: driverName, Handle: "v", Name: "pv-v", Bytes: 100, Secrets: map[string]string{"x": "secret"}}
	if n, err := h.Expand(t.Context(), e); err != nil || n != 0 {
		t.Errorf("before: %d, %v", n, err)
	}
	h.open("")
	h.publish(h.request("a", "v"))
	h.called("NodeStageVolume NodeExpandVolume NodePublishVolume")
	if s := h.List(); len(s) != 1 || s[0].Size != 100 || s[0].ExpansionDue != 0 {
		t.Errorf("there is %+v", s)
	}
	if n, err := h.Expand(t.Context(), e); err != nil || n != 100 {
		t.Errorf("again: %d, %v", n, err)
	}
	h.called("")
	h.driver.fail(answer("NodeExpandVolume", codes.Internal, 1), nil)
	e.Bytes = 200
	if _, err := h.Expand(t.Context(), e); csi.CodeOf(err) != codes.Internal {
		t.Errorf("error is %v", err)
	}
	if s := h.List(); s[0].ExpansionDue != 200 || !strings.Contains(s[0].Error, "NodeExpandVolume") {
		t.Errorf("there is %+v", s)
	}
	h.open("")
	h.driver.said()
	h.publish(h.request("a", "v"))
	h.called("NodeExpandVolume")
	if h.driver.sizes["v"] != 200 {
		t.Errorf("the driver has %v", h.driver.sizes)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	_, err := h.Expand(t.Context(), e)
	must(t, err)
	if s := h.List(); len(s) != 1 || s[0].ExpansionDue != 200 {
		t.Errorf("there is %+v", s)
	}
	e.Bytes = 0
	_, err = h.Expand(t.Context(), e)
	must(t, err)
	h.nothing()
}

// grown is a request for a volume that is to be larger than it is.
func (h *house) grown(uid, id string) Request {
	r := h.request(uid, id)
	r.Size, r.Expand = 50, 100
	return r
}

// TestHeldExpansion expands a volume for the pods that have it, and leaves nothing due when they have gone.
func TestHeldExpansion(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	e := Expansion{Driver: driverName, Handle: "v", Name: "pv-v", Bytes: 200, Held: true}
	if n, err := h.Expand(t.Context(), e); err != nil || n != 0 {
		t.Errorf("before: %d, %v", n, err)
	}
	h.nothing()
	h.publish(h.grown("a", "v"))
	h.called("NodeStageVolume NodeExpandVolume NodePublishVolume")
	h.open("")
	if s := h.List(); len(s) != 1 || s[0].Size != 100 || s[0].ExpansionDue != 0 {
		t.Errorf("there is %+v", s)
	}
	h.publish(h.grown("b", "v")) // of before that
	h.called("NodePublishVolume")

	h.driver.fail(answer("NodeExpandVolume", codes.OutOfRange, 100), nil)
	if _, err := h.Expand(t.Context(), e); csi.CodeOf(err) != codes.OutOfRange {
		t.Errorf("error is %v", err)
	}
	h.driver.fail(nil, nil)
	e.Bytes = 150 // which does not wait for what has failed
	if n, err := h.Expand(t.Context(), e); err != nil || n != 150 {
		t.Errorf("another size: %d, %v", n, err)
	}
	h.driver.fail(answer("NodeExpandVolume", codes.OutOfRange, 100), nil)
	e.Bytes = 200
	_, err := h.Expand(t.Context(), e)
	if csi.CodeOf(err) != codes.OutOfRange || h.List()[0].ExpansionDue != 200 {
		t.Errorf("error is %v, there is %+v", err, h.List())
	}
	e.Bytes = 0
	if n, err := h.Expand(t.Context(), e); err != nil || n != 150 || h.List()[0].ExpansionDue != 0 {
		t.Errorf("forgotten: %d, %v, there is %+v", n, err, h.List())
	}
	e.Bytes = 200
	_, err = h.Expand(t.Context(), e)
	if h.open(""); csi.CodeOf(err) != codes.OutOfRange || h.List()[0].ExpansionDue != 200 {
		t.Errorf("error is %v, there is %+v", err, h.List())
	}
	for _, uid := range []string{"a", "b"} {
		must(t, h.Release(t.Context(), h.podDir(uid)))
	}
	h.nothing()
}

// TestGrownFails has a pod get the volume as it is when the driver does not expand it.
func TestGrownFails(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.driver.fail(answer("NodeExpandVolume", codes.Internal, 100), nil)
	h.publish(h.grown("a", "v"))
	if s := h.List(); len(s) != 1 || s[0].Size != 50 || s[0].ExpansionDue != 100 {
		t.Errorf("there is %+v", s)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestExpandPath gives the driver a path that it may write at.
func TestExpandPath(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	for uid, readOnly := range map[string]bool{"a": true, "b": false, "c": true} {
		r := h.request(uid, "v")
		r.ReadOnly = readOnly
		h.publish(r)
	}
	_, err := h.Expand(t.Context(), Expansion{Driver: driverName, Handle: "v", Name: "pv-v", Bytes: 100, Held: true})
	must(t, err)
	r, _ := h.driver.last("NodeExpandVolume").(*spec.NodeExpandVolumeRequest)
	if path := r.GetVolumePath(); !strings.HasPrefix(path, h.podDir("b")) {
		t.Errorf("the path is %q", path)
	}
	for _, uid := range []string{"a", "b", "c"} {
		must(t, h.Release(t.Context(), h.podDir(uid)))
	}
	h.nothing()
}
