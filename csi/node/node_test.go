package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi"
)

// TestShared has two pods share a volume: it is staged once, and unstaged after the second.
func TestShared(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	path := h.publish(h.request("a", "v"))
	h.called("NodeStageVolume NodePublishVolume")
	if want := h.podDir("a") + "/volumes/kubernetes.io~csi/pv-v/mount"; path != want {
		t.Errorf("it is at %s, want %s", path, want)
	}
	if b, err := os.ReadFile(path + "/precious"); string(b) != "data" {
		t.Errorf("the pod reads %q, %v", b, err)
	}
	other := h.publish(h.request("b", "v"))
	h.called("NodePublishVolume")
	if h.publish(h.request("a", "v")) != path {
		t.Error("the path is another one")
	}
	h.called("")
	h.open("") // and the agent starts again
	if h.publish(h.request("a", "v")) != path {
		t.Error("the path is another one")
	}
	h.called("")
	again := h.request("a", "v")
	again.Republish = true
	h.publish(again)
	h.called("NodePublishVolume")
	if got := h.Users(driverName, "v"); len(got) != 2 || got[0].UID != "a" || got[1].Name != "pod-b" {
		t.Errorf("users are %v", got)
	}
	if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.called("NodeUnpublishVolume")
	if _, err := os.Stat(other + "/precious"); err != nil {
		t.Error(err)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	must(t, h.Release(t.Context(), h.podDir("never")))
	h.called("")
	must(t, h.Release(t.Context(), h.podDir("b")))
	h.called("NodeUnpublishVolume NodeUnstageVolume")
	h.nothing()
}

// TestAttach has the node attach, where the driver does that on the same socket, and others do not.
func TestAttach(t *testing.T) {
	h := newHouse(t, func(d *dirDriver) {
		d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	})
	h.volume("v")
	h.publish(h.request("a", "v"))
	stage := h.driver.last("NodeStageVolume").(*spec.NodeStageVolumeRequest)
	publish := h.driver.last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	if stage.PublishContext["device"] != "x" || publish.PublishContext["device"] != "x" {
		t.Errorf("publish contexts are %v and %v", stage.PublishContext, publish.PublishContext)
	}
	if got := h.driver.last("ControllerPublishVolume").(*spec.ControllerPublishVolumeRequest).NodeId; got != "this-node" {
		t.Errorf("the node is %s", got)
	}
	h.called("ControllerPublishVolume NodeStageVolume NodePublishVolume")
	h.open("")
	h.publish(h.request("b", "v"))
	if got := h.driver.last("NodePublishVolume").(*spec.NodePublishVolumeRequest).PublishContext["device"]; got != "x" {
		t.Errorf("after a restart the publish context is %q", got)
	}
	must(t, h.Release(t.Context(), h.podDir("b")))
	h.driver.said()
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.called("NodeUnpublishVolume NodeUnstageVolume ControllerUnpublishVolume")
	h.nothing()

	r := h.request("a", "v")
	r.Attached = true
	h.publish(r)
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.called("NodeStageVolume NodePublishVolume NodeUnpublishVolume NodeUnstageVolume")
	h.nothing()
}

// TestEphemeral has a volume that is the pod's alone, and is neither staged nor attached.
func TestEphemeral(t *testing.T) {
	h := newHouse(t, func(d *dirDriver) {
		d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
		d.node = append(d.node, spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	})
	r := h.request("a", "")
	r.Name, r.Ephemeral, r.PodInfo, r.Group = "inline", true, true, new(int64(2000))
	r.Tokens = `{"aud":{"token":"t"}}`
	r.Secrets = Secrets{Stage: map[string]string{"s": "1"}, Publish: map[string]string{"p": "2"}}
	out, err := h.Publish(t.Context(), r)
	must(t, err)
	if !out.Group || !out.Fresh || !strings.HasSuffix(out.Path, "/pods/a/volumes/kubernetes.io~csi/inline/mount") {
		t.Errorf("published is %+v", out)
	}
	got := h.driver.last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	for k, want := range map[string]string{
		"a": "b", "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "pod-a", "csi.storage.k8s.io/pod.namespace": "ns",
		"csi.storage.k8s.io/pod.uid": "a", "csi.storage.k8s.io/serviceAccount.name": "default", csi.TokensKey: r.Tokens,
	} {
		if got.VolumeContext[k] != want {
			t.Errorf("the context has %s for %s, want %s", got.VolumeContext[k], k, want)
		}
	}
	if got.Secrets["p"] != "2" || got.StagingTargetPath != "" || got.VolumeCapability.GetMount().VolumeMountGroup != "2000" ||
		got.VolumeCapability.AccessMode.Mode != spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER || !strings.HasPrefix(got.VolumeId, "csi-") {
		t.Errorf("the driver was asked %v", got)
	}
	// Nothing of what is secret is in a file.
	must(t, filepath.WalkDir(h.root, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			if strings.Contains(string(b), "token") || strings.Contains(string(b), `"2"`) {
				t.Errorf("%s has %s", path, b)
			}
		}
		return err
	}))
	r.TokensInSecrets, r.Republish = true, true
	h.publish(r)
	got = h.driver.last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	if got.Secrets[csi.TokensKey] != r.Tokens || got.VolumeContext[csi.TokensKey] != "" {
		t.Errorf("the driver was asked %v", got)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.called("NodePublishVolume NodePublishVolume NodeUnpublishVolume")
	h.nothing()
}

// TestBlock has a device.
func TestBlock(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	r := h.request("a", "v")
	r.Block, r.AccessMode = true, ReadWriteMany
	path := h.publish(r)
	if want := h.root + "/plugins/kubernetes.io/csi/volumeDevices/publish/pv-v/a"; path != want {
		t.Errorf("it is at %s", path)
	}
	got := h.driver.last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	if want := h.root + "/plugins/kubernetes.io/csi/volumeDevices/staging/pv-v"; got.StagingTargetPath != want || got.VolumeCapability.GetBlock() == nil ||
		got.VolumeCapability.AccessMode.Mode != spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER {
		t.Errorf("the driver was asked %v", got)
	}
	if _, err := h.Publish(t.Context(), h.request("b", "v")); err == nil || !strings.Contains(err.Error(), "volume mode") {
		t.Errorf("as a file system: %v", err)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestOncePod refuses a second pod.
func TestOncePod(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	a, b := h.request("a", "v"), h.request("b", "v")
	a.AccessMode, b.AccessMode = ReadWriteOncePod, ReadWriteOncePod
	h.publish(a)
	// Another PersistentVolume is of the same volume, and says that many pods may have it.
	c := h.request("c", "v")
	c.Name = "the-other"
	if _, err := h.Publish(t.Context(), c); err == nil || !strings.Contains(err.Error(), "pod ns/pod-a has it") {
		t.Errorf("a pod by another PersistentVolume: %v", err)
	}
	if _, err := h.Publish(t.Context(), b); err == nil || !strings.Contains(err.Error(), "pod ns/pod-a has it") {
		t.Errorf("the second pod: %v", err)
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.open("")
	h.publish(b)
	must(t, h.Release(t.Context(), h.podDir("b")))
	h.publish(c)
	must(t, h.Release(t.Context(), h.podDir("c")))
	h.nothing()
}

// TestRefused refuses what would lead elsewhere.
func TestRefused(t *testing.T) {
	h := newHouse(t)
	for name, change := range map[string]func(*Request){
		"driver":    func(r *Request) { r.Driver = "../x" },
		"handle":    func(r *Request) { r.Handle = "" },
		"name":      func(r *Request) { r.Name = ".." },
		"uid":       func(r *Request) { r.Pod.UID = "a/b" },
		"directory": func(r *Request) { r.PodDir = "/etc" },
	} {
		r := h.request("a", "v")
		change(&r)
		if _, err := h.Publish(t.Context(), r); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	r := h.request("a", "v")
	r.Driver = "other.test"
	if _, err := h.Publish(t.Context(), r); !errors.Is(err, csi.ErrNotRegistered) {
		t.Errorf("a driver that is not there: %v", err)
	}
	h.nothing()
}

// answer makes a driver answer with a code, before or after its effect, as often as said.
func answer(method string, code codes.Code, times int) func(context.Context, string) error {
	return func(_ context.Context, m string) error {
		if m == method && times > 0 {
			times--
			return status.Error(code, "no")
		}
		return nil
	}
}

// TestErrors: what is final is undone at once, what is not is tried again, and in the end nothing is left of either.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		method string
		code   codes.Code
		after  bool
		want   string
	}{
		{"NodeStageVolume", codes.InvalidArgument, false, "NodeStageVolume NodeUnstageVolume"},
		{"NodeStageVolume", codes.Internal, true, "NodeStageVolume NodeUnstageVolume"},
		{"NodeStageVolume", codes.Aborted, false, "NodeStageVolume"},
		{"NodeStageVolume", codes.DeadlineExceeded, true, "NodeStageVolume"},
		{"NodePublishVolume", codes.FailedPrecondition, false, "NodeStageVolume NodePublishVolume NodeUnpublishVolume"},
		{"NodePublishVolume", codes.Unknown, true, "NodeStageVolume NodePublishVolume NodeUnpublishVolume"},
		{"NodePublishVolume", codes.Unavailable, true, "NodeStageVolume NodePublishVolume"},
	} {
		for _, then := range []string{"release", "publish"} {
			t.Run(c.method+c.code.String()+then, func(t *testing.T) {
				h := newHouse(t)
				h.volume("v")
				if c.after {
					h.driver.fail(nil, answer(c.method, c.code, 1))
				} else {
					h.driver.fail(answer(c.method, c.code, 1), nil)
				}
				_, err := h.Publish(t.Context(), h.request("a", "v"))
				if csi.CodeOf(err) != c.code {
					t.Fatalf("error is %v", err)
				}
				h.called(c.want)
				if _, err := h.Publish(t.Context(), h.request("a", "v")); !errors.As(err, new(*Backoff)) {
					t.Errorf("too soon: %v", err)
				}
				h.called("")
				if then == "publish" {
					h.register() // which has it tried again at once
					h.publish(h.request("a", "v"))
				}
				must(t, h.Release(t.Context(), h.podDir("a")))
				h.nothing()
			})
		}
	}
}

// TestDoubted: a volume that cannot be published to one pod is staged for the other that has it, and staged once more
// for the next.
func TestDoubted(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	h.driver.fail(answer("NodePublishVolume", codes.Internal, 1), nil)
	if _, err := h.Publish(t.Context(), h.request("b", "v")); csi.CodeOf(err) != codes.Internal {
		t.Fatalf("error is %v", err)
	}
	must(t, h.Release(t.Context(), h.podDir("b")))
	for range 2 { // the second time with an agent that is started again
		if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
			t.Errorf("found %v, %v", found, err)
		}
		if s := h.List(); len(s) != 1 || !s[0].Staged {
			t.Errorf("there is %+v", s)
		}
		h.open("")
	}
	h.driver.said()
	h.publish(h.request("c", "v"))
	h.called("NodeStageVolume NodePublishVolume")
	h.publish(h.request("d", "v"))
	h.called("NodePublishVolume")
	for _, uid := range []string{"a", "c", "d"} {
		must(t, h.Release(t.Context(), h.podDir(uid)))
	}
	h.nothing()
}

// TestGivenUp: a volume whose publishing nobody has heard the end of is unpublished before it is unstaged when the
// next agent's staging of it fails for good.
func TestGivenUp(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.driver.fail(nil, answer("NodePublishVolume", codes.Unavailable, 1))
	if _, err := h.Publish(t.Context(), h.request("a", "v")); csi.CodeOf(err) != codes.Unavailable {
		t.Fatalf("error is %v", err)
	}
	h.open("")
	h.driver.fail(answer("NodeStageVolume", codes.Internal, 1), nil)
	h.driver.said()
	if _, err := h.Publish(t.Context(), h.request("a", "v")); csi.CodeOf(err) != codes.Internal {
		t.Fatalf("error is %v", err)
	}
	h.called("NodeStageVolume NodeUnpublishVolume NodeUnstageVolume")
	h.nothing()
}

// TestUndoFails: what cannot be undone is tried again, and the pod has it until then.
func TestUndoFails(t *testing.T) {
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"} {
		t.Run(method, func(t *testing.T) {
			h := newHouse(t, func(d *dirDriver) {
				d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
			})
			h.volume("v")
			h.publish(h.request("a", "v"))
			h.driver.fail(answer(method, codes.Internal, 1), nil)
			if err := h.Release(t.Context(), h.podDir("a")); csi.CodeOf(err) != codes.Internal {
				t.Fatalf("error is %v", err)
			}
			if s := h.List(); len(s) != 1 || len(s[0].Uses) != 1 || s[0].Uses[0].Published || !strings.Contains(s[0].Error, method) {
				t.Errorf("there is %+v", s)
			}
			found, err := h.Check(t.Context())
			must(t, err)
			if len(found) == 0 || found[0].What != HalfDone {
				t.Errorf("found %v", found)
			}
			h.open("")
			must(t, h.Release(t.Context(), h.podDir("a")))
			h.nothing()
		})
	}
}

// TestNotFound: a volume that does not exist any more has nothing to undo.
func TestNotFound(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	no := status.Error(codes.NotFound, "no such volume")
	h.driver.fail(func(context.Context, string) error { return no }, nil)
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestSecretsStay: what a driver says of a secret is nobody else's.
func TestSecretsStay(t *testing.T) {
	h := newHouse(t)
	r := h.request("a", "none")
	r.Secrets.Stage = map[string]string{"password": "hunter2!"}
	_, err := h.Publish(t.Context(), r)
	if err == nil || strings.Contains(err.Error(), "hunter2!") || !strings.Contains(err.Error(), "whose password is ***stripped***") {
		t.Errorf("error is %v", err)
	}
	h.nothing()
}

// TestReboot: what was mounted is gone, and the driver is told to undo it nevertheless.
func TestReboot(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.volume("w")
	h.publish(h.request("a", "v"))
	h.publish(h.request("b", "w"))
	h.publish(h.request("c", "w"))
	h.driver.said()
	h.unmountAll()
	h.open("another boot")
	if s := h.List(); len(s) != 2 || s[0].Staged || s[0].Uses[0].Published || len(s[1].Uses) != 2 {
		t.Errorf("there is %+v", s)
	}
	must(t, h.Release(t.Context(), h.podDir("a"))) // which does not come back
	h.called("NodeUnpublishVolume NodeUnstageVolume")
	h.publish(h.request("b", "w"))
	h.called("NodeStageVolume NodePublishVolume")
	must(t, h.Release(t.Context(), h.podDir("c")))
	must(t, h.Release(t.Context(), h.podDir("b")))
	h.called("NodeUnpublishVolume NodeUnpublishVolume NodeUnstageVolume")
	h.nothing()
}

// TestUnmounted: what somebody has unmounted while no agent ran is published again.
func TestUnmounted(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	h.driver.said()
	h.unmountAll()
	if found, err := h.Check(t.Context()); err != nil || len(found) != 2 || found[0].What != Missing {
		t.Errorf("found %v, %v", found, err)
	}
	h.open("")
	h.publish(h.request("a", "v"))
	h.called("NodeStageVolume NodePublishVolume")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}
