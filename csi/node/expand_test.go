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

// waits requires that a pod does not get what is published to it, whatever agent it is.
func (h *house) waits(r Request, why string) {
	h.t.Helper()
	for range 2 {
		out, err := h.Publish(h.t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), "bytes first: "+why) {
			h.t.Errorf("pod %s has %+v, %v", r.Pod.UID, out, err)
		}
		h.called("")
		h.open("")
		why = errNotYet.Error()
	}
}

// TestGrownFails has pods wait that are about to get a volume which the driver does not expand, until it does or that
// is off. Those that have it keep it.
func TestGrownFails(t *testing.T) {
	e := Expansion{Driver: driverName, Handle: "v", Name: "pv-v", Bytes: 100, Held: true}
	for name, end := range map[string]func(*house) error{
		"it does": func(h *house) error {
			_, err := h.Expand(t.Context(), e)
			return err
		},
		"it is forgotten": func(h *house) error {
			e := e
			e.Bytes = 0
			_, err := h.Expand(t.Context(), e)
			return err
		},
		"not while it is in use": func(h *house) error {
			h.driver.fail(answer("NodeExpandVolume", codes.FailedPrecondition, 1), nil)
			if _, err := h.Expand(t.Context(), e); csi.CodeOf(err) != codes.FailedPrecondition {
				t.Errorf("error is %v", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.volume("v")
			had := h.request("had", "v")
			had.Size = 50
			h.publish(had)
			only := h.request("only", "v")
			h.called("NodeStageVolume NodePublishVolume")
			h.driver.fail(answer("NodeExpandVolume", codes.Internal, 100), nil)
			out, err := h.Publish(t.Context(), h.grown("a", "v"))
			if csi.CodeOf(err) != codes.Internal || !out.Fresh || out.Path != "" {
				t.Errorf("there is %+v, %v", out, err)
			}
			h.called("NodeExpandVolume NodePublishVolume")
			h.waits(h.grown("a", "v"), "call NodeExpandVolume")
			if s := h.List(); len(s) != 1 || s[0].Size != 50 || s[0].ExpansionDue != 100 || !s[0].Uses[1].Published {
				t.Errorf("there is %+v", s)
			}
			only.ReadOnly = true
			h.publish(only)
			had.Expand = 100
			h.publish(had)
			h.driver.said()
			h.waits(h.grown("a", "v"), "call NodeExpandVolume")
			h.driver.fail(nil, nil)
			must(t, end(h))
			h.driver.said()
			h.publish(h.grown("a", "v"))
			h.open("")
			h.publish(h.grown("a", "v"))
			for _, uid := range []string{"had", "only", "a"} {
				must(t, h.Release(t.Context(), h.podDir(uid)))
			}
			h.nothing()
		})
	}
}

// TestGrownNoMore has a pod get its volume whose claim says by now that the node has nothing to do, or less; and one
// that has waited be gone.
func TestGrownNoMore(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.driver.fail(answer("NodeExpandVolume", codes.Internal, 1), nil)
	if _, err := h.Publish(t.Context(), h.grown("a", "v")); err == nil {
		t.Error("a pod gets a volume that is not expanded")
	}
	h.driver.said()
	r := h.grown("a", "v")
	r.Expand = 80
	h.waits(r, "call NodeExpandVolume")
	if s := h.List(); s[0].ExpansionDue != 80 {
		t.Errorf("there is %+v", s)
	}
	r.Expand = 0
	h.publish(r)
	h.called("")
	if s := h.List(); s[0].ExpansionDue != 0 {
		t.Errorf("there is %+v", s)
	}
	h.open("soon") // the machine starts again
	h.driver.fail(answer("NodeExpandVolume", codes.Internal, 1), nil)
	if _, err := h.Publish(t.Context(), h.grown("a", "v")); err == nil {
		t.Error("a pod gets a volume that is not expanded")
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
