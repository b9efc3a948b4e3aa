package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/intercept"
)

// TestPluginResources has agents end at any time: what plugins have had is known until the Node was written without it.
func TestPluginResources(t *testing.T) {
	file := filepath.Join(t.TempDir(), pluginResourcesFile)
	open := func() *pluginResources {
		p := &pluginResources{file: file, log: slog.New(slog.DiscardHandler)}
		if err := p.load(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := open()
	if names, fresh := p.known([]corev1.ResourceName{"example.com/b"}); !fresh || !slices.Equal(names, []corev1.ResourceName{"example.com/b"}) {
		t.Errorf("%v, %v", names, fresh)
	}
	// Killed before the Node was written.
	p = open()
	if names, fresh := p.known(nil); !fresh || len(names) > 0 {
		t.Errorf("%v, %v", names, fresh)
	}
	p.written()
	if _, fresh := p.known([]corev1.ResourceName{"example.com/b", "example.com/a"}); fresh {
		t.Error("the Node was written, and counts as unknown")
	}
	p = open()
	if names, fresh := p.known(nil); fresh || !slices.Equal(names, []corev1.ResourceName{"example.com/a", "example.com/b"}) {
		t.Errorf("%v, %v", names, fresh)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = open()
	if names, fresh := p.known(nil); !fresh || len(names) > 0 {
		t.Errorf("torn: %v, %v", names, fresh)
	}
}

func TestImageCalls(t *testing.T) {
	calls := 0
	around := imageCalls(func() { calls++ })
	failure := errors.New("it fails")
	for _, operation := range []string{"pull_image", "remove_image", "list_images"} {
		err := around(t.Context(), intercept.Call{Operation: operation}, func() error { return failure })
		if !errors.Is(err, failure) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	if calls != 2 {
		t.Errorf("told %d times", calls)
	}
}

func TestNodeResources(t *testing.T) {
	dir := t.TempDir()
	devices, err := device.New(device.Config{Dir: dir, File: filepath.Join(dir, "devices.json")})
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.MaxPods = 7
	div, err := c.Divide(corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi"), config.PidResource: resource.MustParse("9"),
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	n := &clusterNode{agent: &Agent{managers: managers{devices: devices}}, div: div}
	n.devices = pluginResources{file: filepath.Join(dir, pluginResourcesFile), log: slog.New(slog.DiscardHandler)}
	r := n.resources()
	if r.Capacity.Pods().Value() != 7 || r.Allocatable.Pods().Value() != 7 || r.Capacity.Memory().Value() != 8<<30 {
		t.Errorf("%+v", r)
	}
	for _, list := range []corev1.ResourceList{r.Capacity, r.Allocatable} {
		if _, has := list[config.PidResource]; has {
			t.Errorf("tasks are a resource: %v", list)
		}
	}
	if _, has := div.Capacity[config.PidResource]; !has {
		t.Error("the division of the node was changed")
	}
}
