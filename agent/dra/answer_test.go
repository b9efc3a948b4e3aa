package dra

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/berth-node/berth/agent/dra/dratest"
)

func answerWith(devices ...*drav1.Device) *drav1.NodePrepareResourcesResponse {
	return &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{"u": {Devices: devices}}}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		answer *drav1.NodePrepareResourcesResponse
		want   string
	}{
		{nil, "leaves the claim out"},
		{&drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{"u": {Error: "on fire"}}}, "on fire"},
		{answerWith(&drav1.Device{PoolName: "p"}), "without a pool_name or a device_name"},
		{answerWith(&drav1.Device{PoolName: "p", DeviceName: "d", CdiDeviceIds: []string{"x"}}), "not <vendor>/<class>=<name>"},
	} {
		if _, err := prepared(tt.answer, "u"); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want %q", tt.answer, err, tt.want)
		}
	}
	got, err := prepared(answerWith(&drav1.Device{RequestNames: []string{"gpu/small"}, PoolName: "p", DeviceName: "d", CdiDeviceIds: []string{"a.com/b=c"}}), "u")
	if err != nil || len(got) != 1 {
		t.Fatalf("got %v (%v)", got, err)
	}
	for request, want := range map[string]bool{"": true, "gpu": true, "gpu/small": true, "small": false, "nic": false} {
		if got[0].of(request) != want {
			t.Errorf("a device for an alternative of request gpu is one of %q: want %v", request, want)
		}
	}
}

// FuzzAnswer: whatever a driver says, what is kept of it can be read again.
func FuzzAnswer(f *testing.F) {
	for _, a := range []*drav1.NodePrepareResourcesResponse{
		{}, answerWith(), answerWith(&drav1.Device{PoolName: "p", DeviceName: "d", CdiDeviceIds: []string{"a.com/b=c"}, RequestNames: []string{"r"}, ShareId: new("s")}),
	} {
		data, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		answer := &drav1.NodePrepareResourcesResponse{}
		if proto.Unmarshal(data, answer) != nil {
			return
		}
		devices, err := prepared(answer, "u")
		if err != nil {
			return
		}
		r := record{UID: "u", Name: "n", Drivers: map[string]driver{"d": {"b", true, devices}}}
		out, err := json.Marshal(journal{Version: 1, Claims: []record{r}})
		if err != nil {
			t.Fatal(err)
		}
		if j, err := decode(out); err != nil || len(j.Claims) != 1 {
			t.Errorf("%s cannot be read again: %v", out, err)
		}
	})
}

// FuzzJournal: what a cut-off or foreign file says is refused or harmless.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"version":1,"claims":[{"uid":"u","namespace":"n","name":"c","results":[{"request":"r","driver":"d","pool":"p","device":"x"}],"pods":[{"uid":"p","as":["e"]}],"drivers":{"d":{"boot":"b","prepared":true,"devices":[{"pool":"p","device":"x","cdi":["a/b=c"]}]}}}]}`))
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":2,"claims":[{"uid":"u","name":"n"},{"uid":"u","name":"n"}]}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := decode(data)
		if err != nil || j.Version > journalVersion {
			return
		}
		file := filepath.Join(dir, "claims.json")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{File: file, Boot: "b"})
		if err != nil {
			t.Fatal(err)
		}
		defer m.drivers.stop()
		for _, c := range j.Claims {
			for _, p := range c.Pods {
				for _, e := range p.As {
					pod := wants(string(p.UID), e)
					_, _ = m.CDI(pod, &pod.Spec.Containers[0])
					m.Health(pod)
					m.Dynamic(pod, "c")
				}
				_ = m.Release(t.Context(), p.UID)
			}
		}
	})
}

func TestBadJournal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "claims.json")
	if err := os.WriteFile(file, []byte(`{"version":1,"claims":[{"uid":""}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{File: file})
	if err != nil || len(m.Left()) > 0 {
		t.Errorf("got %v (%v)", m.Left(), err)
	}
	m.drivers.stop()
	if _, err := os.Stat(file + ".bad"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{File: file}); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("a file of a later version: %v", err)
	}
}

// TestHealth hears of devices, by either version of the service: what is told counts for its time, or until the driver
// goes.
func TestHealth(t *testing.T) {
	h := newHouse(t)
	d := &dratest.Driver{Services: []string{drav1.DRAPluginService, healthv1alpha1.DRAResourceHealthService}}
	stop := h.drive(d)
	h.register(d)
	pod := wants("one", "a", "b/r")
	h.must(h.Prepare(t.Context(), pod, among(claimOf("a", gpus), claimOf("b", gpus))))
	want := func(want map[string]string) {
		t.Helper()
		for {
			got := map[string]string{}
			for _, st := range h.Health(pod)["c"] {
				for _, r := range st.Resources {
					text := string(r.Health)
					if r.Message != nil {
						text += " " + *r.Message
					}
					got[string(st.Name)+" "+string(r.ResourceID)] = text
				}
			}
			if maps.Equal(got, want) {
				return
			}
			select {
			case <-h.Changed():
			case <-time.After(time.Minute):
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
	say := func(device string, is healthv1.HealthStatus, text string) *healthv1.DeviceHealth {
		return &healthv1.DeviceHealth{Device: &healthv1.DeviceIdentifier{PoolName: "node", DeviceName: device}, Health: is, Message: text, LastUpdatedTime: time.Now().Unix(), HealthCheckTimeoutSeconds: 3600}
	}
	const a, b = "claim:a gpu.example.com/node/a", "claim:b/r gpu.example.com/node/b"
	want(map[string]string{a: "Unknown", b: "Unknown"})
	d.SetHealth(say("a", healthv1.HealthStatus_HEALTHY, ""), say("b", healthv1.HealthStatus_UNHEALTHY, "too hot"))
	want(map[string]string{a: "Healthy", b: "Unhealthy too hot"})
	short := say("a", healthv1.HealthStatus_HEALTHY, "")
	short.HealthCheckTimeoutSeconds = 1
	d.SetHealth(short) // and then nothing more is heard of it
	want(map[string]string{a: "Unknown", b: "Unhealthy too hot"})
	stop()
	h.Deregister(gpus, filepath.Join(h.dir, "registry", gpus+"-reg.sock"))
	want(map[string]string{a: "Unknown", b: "Unknown"})
}

func TestHealthOf(t *testing.T) {
	now := time.Unix(1000, 500)
	for _, tt := range []struct {
		said  *healthv1.DeviceHealth
		until time.Duration
	}{
		{&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY}, 30 * time.Second},
		{&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY, HealthCheckTimeoutSeconds: -1}, 30 * time.Second},
		{&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY, HealthCheckTimeoutSeconds: 5}, 5 * time.Second},
		{&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY, LastUpdatedTime: 1000}, 30 * time.Second},
		{&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY, LastUpdatedTime: 900, HealthCheckTimeoutSeconds: 1 << 62}, 24*time.Hour - 99*time.Second - 500},
	} {
		h := healthOf(tt.said, now)
		if got := h.until.Sub(now); got != tt.until {
			t.Errorf("%v counts for %s, want %s", tt.said, got, tt.until)
		}
		if st, _ := h.at(now.Add(tt.until)); st != corev1.ResourceHealthStatusHealthy {
			t.Errorf("%v is %s before its time is over", tt.said, st)
		}
		if st, _ := h.at(now.Add(tt.until + 1)); st != corev1.ResourceHealthStatusUnknown {
			t.Errorf("%v is %s when its time is over", tt.said, st)
		}
	}
	if got := clip(strings.Repeat("ä", 1000)); len(got) > 1024 || !strings.HasSuffix(got, "ä...") {
		t.Errorf("a long message ends with %q and has %d bytes", got[len(got)-10:], len(got))
	}
}
