package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berth-node/berth/csi"
)

func (h *house) recordPath(id string) string {
	return filepath.Join(h.root, "csi", key(driverName, id)+recordSuffix)
}

// TestDamaged: a record that cannot be read is put aside and named, the others go on, and from what is beside the
// volume in the pod's directory it is made again.
func TestDamaged(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "half": `{"version":1,"dri`, "no version": `{"driver":"a","handle":"b","name":"c"}`, "not JSON": "\x00\x01",
		"elsewhere": `{"version":1,"driver":"` + driverName + `","handle":"v","name":"n","stage":"/etc"}`, "other": `{"version":1,"driver":"x","handle":"v","name":"n"}`,
		"large": strings.Repeat(" ", maxRecord+1),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.volume("v")
			h.volume("w")
			h.publish(h.request("a", "v"))
			h.publish(h.request("b", "v"))
			h.publish(h.request("c", "w"))
			must(t, os.WriteFile(h.recordPath("v"), []byte(text), 0o600))
			h.open("")
			if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0], key(driverName, "v")) {
				t.Errorf("problems are %q", p)
			}
			if s := h.List(); len(s) != 2 || len(s[0].Uses) != 2 || s[0].StagePath == "" {
				t.Errorf("there is %+v", s)
			}
			for _, uid := range []string{"a", "b", "c"} {
				must(t, h.Release(t.Context(), h.podDir(uid)))
			}
			bad, err := filepath.Glob(filepath.Join(h.root, "csi", "*"+badSuffix))
			if err != nil || len(bad) != 1 {
				t.Errorf("put aside are %v, %v", bad, err)
			}
			found, err := h.Check(t.Context())
			if err != nil || len(found) != 1 || found[0].What != Damaged {
				t.Errorf("found %v, %v", found, err)
			}
			_ = os.Remove(bad[0])
			h.nothing()
		})
	}
}

// TestLater: a record of a later version stays, and its volume is left alone.
func TestLater(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	h.driver.said()
	before, err := os.ReadFile(h.recordPath("v"))
	must(t, err)
	text := []byte(`{"version":2,"driver":"` + driverName + `"}`)
	must(t, os.WriteFile(h.recordPath("v"), text, 0o600))
	h.open("")
	if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0], "later version") {
		t.Errorf("problems are %q", p)
	}
	if _, err := h.Publish(t.Context(), h.request("a", "v")); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("error is %v", err)
	}
	if _, err := h.Expand(t.Context(), Expansion{Driver: driverName, Handle: "v", Name: "n", Bytes: 1}); err == nil {
		t.Error("it is expanded")
	}
	if err := h.Release(t.Context(), h.podDir("a")); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("it is released: %v", err)
	}
	h.called("")
	if now, _ := os.ReadFile(h.recordPath("v")); string(now) != string(text) {
		t.Errorf("the record is %s", now)
	}
	must(t, os.WriteFile(h.recordPath("v"), before, 0o600))
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestOrphan: a mount without a record is found, and undone only where its driver and its handle are known.
func TestOrphan(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	must(t, os.RemoveAll(filepath.Join(h.root, "csi")))
	must(t, removeData(filepath.Join(h.podDir("a"), "volumes", pluginName, "pv-v")))
	h.open("")
	found, err := h.Check(t.Context())
	must(t, err)
	if len(found) != 2 || found[0].What != Orphan || !found[0].CanUndo || found[0].Handle != "v" || found[1].What != Orphan || found[1].CanUndo {
		t.Fatalf("found %+v", found)
	}
	if err := h.Undo(t.Context(), found[1]); err == nil {
		t.Error("what is not known is undone")
	}
	must(t, writeData(filepath.Dir(found[1].Path), data{Driver: driverName, Handle: "v"}))
	found, err = h.Check(t.Context())
	must(t, err)
	slices.Reverse(found) // pods before what they share
	for _, f := range found {
		must(t, h.Undo(t.Context(), f))
	}
	if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
	h.nothing()
}

// TestBackoff doubles from half a second to two minutes and two seconds.
func TestBackoff(t *testing.T) {
	h := newHouse(t)
	now := time.Unix(1000, 0)
	h.ledger.now = func() time.Time { return now }
	want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}
	for i := range 12 {
		_, err := h.Publish(t.Context(), h.request("a", "none"))
		if csi.CodeOf(err) != codes.NotFound {
			t.Fatal(err)
		}
		h.driver.said()
		_, err = h.Publish(t.Context(), h.request("a", "none"))
		var b *Backoff
		if !errors.As(err, &b) || i < len(want) && b.Until.Sub(now) != want[i] || i == 11 && b.Until.Sub(now) != retryMax {
			t.Fatalf("%d: %v, %v", i, err, b)
		}
		h.called("")
		now = b.Until
	}
	h.volume("none")
	h.publish(h.request("a", "none"))
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestCancelled: who gives up waits for nobody, and makes nobody wait.
func TestCancelled(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	called, let := make(chan bool, 2), make(chan bool)
	h.driver.fail(func(ctx context.Context, m string) error {
		if m == "NodeStageVolume" {
			called <- true
			select {
			case <-let:
			case <-ctx.Done():
			}
		}
		return nil
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := h.Publish(ctx, h.request("a", "v"))
		first <- err
	}()
	<-called
	waits, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := h.Publish(waits, h.request("b", "v")); !errors.Is(err, context.Canceled) {
		t.Errorf("who waits: %v", err)
	}
	h.volume("w")
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) || csi.Final(err) {
		t.Errorf("who is called for: %v", err)
	}
	close(let)
	h.publish(h.request("a", "v"))
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestBusy: a volume that somebody uses is not undone, and is when nobody does any more.
func TestBusy(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	path := h.publish(h.request("a", "v"))
	f, err := os.Open(filepath.Join(path, "precious"))
	must(t, err)
	if err := h.Release(t.Context(), h.podDir("a")); err == nil {
		t.Error("it is released")
	}
	f.Close()
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestLeft: a driver that leaves its mount has it unmounted, and data that it leaves in the directory are not removed.
func TestLeft(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	path := h.publish(h.request("a", "v"))
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m == "NodeUnpublishVolume" {
			must(t, os.MkdirAll(path, 0o750))
			return bind(h.driver.source("v"), path)
		}
		return nil
	})
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
	path = h.publish(h.request("a", "v"))
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m == "NodeUnpublishVolume" {
			must(t, os.MkdirAll(path, 0o750))
			return os.WriteFile(path+"/file", nil, 0o600)
		}
		return nil
	})
	if err := h.Release(t.Context(), h.podDir("a")); !errors.Is(err, unix.ENOTEMPTY) || !strings.Contains(err.Error(), "moved or removed") {
		t.Errorf("error is %v", err)
	}
	h.driver.fail(nil, nil)
	must(t, os.Remove(path+"/file"))
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

func TestStats(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	if _, err := h.Stats(t.Context(), driverName, "v", ""); err == nil {
		t.Error("there are statistics of nothing")
	}
	path := h.publish(h.request("a", "v"))
	for _, at := range []string{"", path} {
		s, err := h.Stats(t.Context(), driverName, "v", at)
		if want := (Stats{Bytes: Usage{6, 10, 4}, Inodes: Usage{-1, 3, 2}}); err != nil || s != want {
			t.Errorf("at %q: %+v, %v", at, s, err)
		}
	}
	if _, err := h.Stats(t.Context(), driverName, "v", "/"); err == nil {
		t.Error("there are statistics of another place")
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

func TestConditions(t *testing.T) {
	var inner []byte
	inner = protowire.AppendTag(inner, fieldAbnormal, protowire.VarintType)
	inner = protowire.AppendVarint(inner, 1)
	inner = protowire.AppendTag(inner, fieldMessage, protowire.BytesType)
	inner = protowire.AppendString(inner, "on\nfire")
	outer := protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), inner)
	if got, want := oldCondition(outer), (Condition{true, true, "", "on fire"}); got != want {
		t.Errorf("got %+v", got)
	}
	got := conditionOf(&spec.VolumeHealth{HealthStatuses: []*spec.VolumeHealth_VolumeHealthEntry{
		{Status: spec.VolumeHealthErrorType_DEGRADED, Message: "slow"}, {Status: spec.VolumeHealthErrorType_DATA_LOSS, Reason: "Gone"},
	}})
	if want := (Condition{true, true, "DATA_LOSS", "Gone"}); got != want {
		t.Errorf("got %+v", got)
	}
	if got := conditionOf(&spec.VolumeHealth{}); got != (Condition{Known: true}) {
		t.Errorf("got %+v", got)
	}
}

// TestMany has many pods with a volume each at once, and many that share one.
func TestMany(t *testing.T) {
	h := newHouse(t)
	var wait sync.WaitGroup
	h.volume("shared")
	for i := range 30 {
		uid, id := fmt.Sprintf("p%d", i), fmt.Sprintf("v%d", i)
		h.volume(id)
		for _, r := range []Request{h.request(uid, id), h.request(uid, "shared")} {
			wait.Go(func() {
				if _, err := h.Publish(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wait.Wait()
	if got := strings.Count(h.driver.said(), "NodeStageVolume"); got != 31 || h.Count(driverName) != 31 {
		t.Errorf("staged %d times", got)
	}
	for i := range 30 {
		wait.Go(func() {
			if err := h.Release(t.Context(), h.podDir(fmt.Sprintf("p%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	h.nothing()
}

// TestFull: where nothing can be recorded nothing is done.
func TestFull(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	dir := t.TempDir()
	must(t, unix.Mount("small", dir, "tmpfs", 0, "size=8k"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	h.Close()
	m, err := New(Config{Root: h.root, Records: filepath.Join(dir, "r"), Drivers: h.drivers})
	must(t, err)
	h.Manager = m
	must(t, os.WriteFile(dir+"/full", make([]byte, 8192), 0o600))
	if _, err := h.Publish(t.Context(), h.request("a", "v")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v", err)
	}
	h.called("")
	must(t, os.Remove(dir+"/full"))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=4m"))
	h.register()
	h.publish(h.request("a", "v"))
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestDead has a volume's file system never answer: nobody but its own release waits for it, and that is given up.
func TestDead(t *testing.T) {
	h := newHouse(t, func(d *dirDriver) { d.node = nil })
	h.volume("w")
	r := h.request("a", "dead")
	path := h.ledger.layout.target(false, r.PodDir, r.Pod.UID, r.Name)
	fuse := -1
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m != "NodePublishVolume" || fuse >= 0 {
			return nil
		}
		must(t, unix.Unmount(path, 0))
		fuse = mountDead(t, path)
		return nil
	})
	must(t, os.MkdirAll(h.driver.source("dead"), 0o755))
	must(t, os.WriteFile(h.driver.source("dead")+"/precious", []byte("data"), 0o600))
	h.publish(r)
	if s := h.List(); len(s) != 1 || !s[0].Uses[0].Published {
		t.Errorf("there is %+v", s)
	}
	if h.publish(r) != path {
		t.Error("the path is another one")
	}
	h.open("")
	if h.publish(r) != path { // what the driver has mounted there is not asked whether it is there
		t.Error("the path is another one")
	}
	if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
	h.publish(h.request("b", "w"))
	must(t, h.Release(t.Context(), h.podDir("b")))
	// The driver does not come to an end with it, and then says that it has, with all left as it is.
	stuck := make(chan bool)
	h.driver.fail(func(ctx context.Context, m string) error {
		if m == "NodeUnpublishVolume" {
			select {
			case <-stuck:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		return nil
	}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := h.Release(ctx, h.podDir("a")); csi.Final(err) || err == nil {
		t.Errorf("error is %v", err)
	}
	close(stuck)
	h.driver.fail(nil, nil)
	must(t, unix.Close(fuse)) // and its server ends
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// mountDead mounts a file system whose server never answers.
func mountDead(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	must(t, unix.Mount("dead", path, "fuse.dead", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	return fd
}

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
