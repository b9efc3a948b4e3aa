package provision

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/csitest"
)

// TestBackBeforeDelete wants a claim that is back to have its data as long as the driver was not called, or has refused
// to delete them.
func TestBackBeforeDelete(t *testing.T) {
	for name, prevent := range map[string]func(*house) (undo func()){
		"the driver is not there": func(h *house) func() {
			h.drivers.Deregister(h.driver.Options().Name, h.driver.Options().Socket)
			return func() { h.stop(); h.open() }
		},
		"the driver refuses": func(h *house) func() {
			h.driver.Faults.Inject(csitest.Fault{RPC: "DeleteVolume", When: csitest.Before, Code: codes.FailedPrecondition, Times: -1})
			return func() { h.driver.Faults.Instead() }
		},
		"there is no secret": func(h *house) func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			secret := h.secrets["default/key"]
			delete(h.secrets, "default/key")
			return func() { h.mu.Lock(); defer h.mu.Unlock(); h.secrets["default/key"] = secret }
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, csitest.Options{})
			h.secrets["default/key"] = map[string]string{"a": "b"}
			c := claim("a")
			c.Class.Parameters = map[string]string{
				"csi.storage.k8s.io/provisioner-secret-name": "key", "csi.storage.k8s.io/provisioner-secret-namespace": "default",
			}
			h.want([]Claim{c}, nil)
			file := filepath.Join(h.driver.Data("v-pvc-uid-a"), "precious")
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			undo := prevent(h)
			h.want(nil, nil)
			h.pass(long)
			if s := h.volume("a"); s.Error == "" || s.Deleting || !s.Missing {
				t.Fatalf("got %+v", s)
			}
			undo()
			h.want([]Claim{c}, nil)
			if s := h.volume("a"); !s.Ready || s.Missing {
				t.Fatalf("got %+v", s)
			}
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
			h.want(nil, nil)
			h.pass(long)
			h.volumes()
		})
	}
}

// TestBackAfterDelete wants a volume not to be used any more that its driver may have begun to delete, and the claim to
// have a new one.
func TestBackAfterDelete(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	file := filepath.Join(h.driver.Data("v-pvc-uid-a"), "old")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.driver.Faults.Inject(csitest.Fault{RPC: "DeleteVolume", When: csitest.Before, Code: codes.DeadlineExceeded},
		csitest.Fault{RPC: "DeleteVolume", When: csitest.Before, Code: codes.FailedPrecondition})
	h.m.Want(nil, nil, nil)
	for passed := time.Duration(0); !h.volume("a").Deleting; passed += look { // until the driver is called once
		if passed > long {
			t.Fatalf("got %+v", h.volume("a"))
		}
		h.pass(look)
	}
	h.want([]Claim{claim("a")}, nil)
	if s := h.volume("a"); !s.Deleting || s.Ready {
		t.Fatalf("got %+v", s)
	}
	h.settle()
	h.settle()
	if s := h.volume("a"); !s.Ready || s.Deleting {
		t.Fatalf("got %+v", s)
	}
	if got := h.told(); !slices.Contains(got, "default/a VolumeDelete!") {
		t.Errorf("the claim does not hear that its data is gone: %q", got)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the old volume is used again")
	}
}

// TestKilledBeforeDelete ends an agent between the record of a deletion and the call: the next one, which cannot know
// whether there was a call, finishes the deletion though the claim is back, and tells the claim that its data is gone.
func TestKilledBeforeDelete(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	file := filepath.Join(h.driver.Data("v-pvc-uid-a"), "old")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.want(nil, nil)
	h.stop()
	killed := make(chan struct{})
	h.recorded = func() {
		if all, _, _, err := (journal{h.dir}).load(); err == nil && all["pvc-uid-a"] != nil && all["pvc-uid-a"].Deleting {
			close(killed)
			runtime.Goexit() // nothing of what would come next is done
		}
	}
	h.open()
	h.want(nil, nil)
	if err := h.m.Delete(Volume, Ref{"default", "a"}); err != nil {
		t.Fatal(err)
	}
	<-killed
	h.stop()
	if calls := h.driver.Calls("DeleteVolume"); len(calls) > 0 {
		t.Fatalf("the driver was called: %v", calls)
	}
	h.recorded = nil
	h.told()
	h.open()
	h.want([]Claim{claim("a")}, nil)
	h.tells("default/a VolumeDelete!", "default/a ProvisioningSucceeded")
	if _, err := os.Stat(file); err == nil {
		t.Error("the old volume is used again")
	}
	if s := h.volume("a"); !s.Ready || s.Deleting || len(h.driver.Calls("DeleteVolume")) != 1 {
		t.Errorf("got %+v, and calls %v", s, h.driver.Calls())
	}
}

// TestSeveral wants what was made for the same claim under two UIDs to be told apart.
func TestSeveral(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.want(nil, nil)
	h.stop()
	data, err := os.ReadFile(filepath.Join(h.dir, "pvc-uid-a.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"uid-0", "uid-z"} {
		text, _, _ := strings.Cut(strings.ReplaceAll(string(data), "uid-a", other), `,"sum":`)
		text += "}"
		if err := os.WriteFile(filepath.Join(h.dir, "pvc-"+other+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.open()
	h.want(nil, nil)
	for range 20 { // in any order
		if s := h.volume("a"); s.Name != "pvc-uid-0" {
			t.Fatalf("got %+v", s)
		}
	}
	if err := h.m.Delete(Volume, Ref{"default", "a"}); err == nil || !strings.Contains(err.Error(), "pvc-uid-0, pvc-uid-a, pvc-uid-z") {
		t.Fatalf("got %v", err)
	}
	if err := h.m.Delete(Volume, Ref{"default", "pvc-uid-a"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.volumes()
	if list := h.m.List(); len(list) != 2 {
		t.Errorf("got %+v", list)
	}
	// The claim is back: it gets one of them, and the other can still be named.
	h.want([]Claim{claim("a")}, nil)
	if s := h.volume("a"); s.Name != "pvc-uid-0" || s.Missing {
		t.Errorf("got %+v", s)
	}
	if err := h.m.Keep(Volume, Ref{"default", "a"}); err == nil || !strings.Contains(err.Error(), "a manifest has it; what was made for it before is called pvc-uid-z") {
		t.Errorf("got %v", err)
	}
	if err := h.m.Keep(Volume, Ref{"default", "pvc-uid-z"}); err != nil {
		t.Error(err)
	}
}

// TestDecideAfterAnother decides while something is being done with what was made, as after the decision before.
func TestDecideAfterAnother(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.want(nil, nil)
	i, err := acts{h.m}.take(Volume, Ref{"default", "a"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- h.m.Keep(Volume, Ref{"default", "a"}) }()
	waited := func() bool {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		return i.free != nil
	}
	for !waited() {
		runtime.Gosched()
	}
	h.m.mu.Lock()
	i.give()
	h.m.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s := h.volume("a"); !s.Stays {
		t.Errorf("got %+v", s)
	}
}
