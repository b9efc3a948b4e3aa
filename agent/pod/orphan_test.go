package pod

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
)

// A runtime that was still making a sandbox when its agent was killed, and tells of it when the next one has removed
// the pod.
func TestOrphans(t *testing.T) {
	for name, mute := range map[string]bool{"Told": false, "FoundAfterwards": true} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *testNode) {
				p, kept := podtest.New("web"), podtest.New("kept")
				n.apply(p, kept)
				n.pass(time.Second)
				config := n.rt.sandboxOf(p.Name).config
				n.remove(p)
				n.pass(time.Minute)
				n.gone(p)
				stranger := podtest.New("stranger", podtest.WithUID("somebody"))
				theirs, _, err := spec.Sandbox(stranger, &spec.Node{RootDir: "/somewhere/else"}, 0, "", nil)
				if err != nil {
					t.Fatal(err)
				}
				// Of a container that was being created meanwhile the sandbox is gone.
				n.rt.mu.Lock()
				n.rt.containers["lost"] = &fakeContainer{sandbox: "gone", ContainerStatus: &runtimeapi.ContainerStatus{
					Id: "lost", Metadata: &runtimeapi.ContainerMetadata{Name: "lost"}, Annotations: map[string]string{spec.OwnerAnnotation: n.cfg.RootDir},
				}}
				n.rt.mu.Unlock()
				n.rt.mute = mute
				for _, c := range []*runtimeapi.PodSandboxConfig{config, theirs} {
					if _, err := n.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: c}); err != nil {
						t.Fatal(err)
					}
				}
				n.pass(time.Minute)
				if mute {
					n.pass(5 * time.Minute) // until all is looked at again
				}
				n.rt.mu.Lock()
				defer n.rt.mu.Unlock()
				var got []string
				for _, s := range n.rt.sandboxes {
					got = append(got, s.GetMetadata().GetName())
				}
				slices.Sort(got)
				if want := []string{kept.Name, stranger.Name}; !slices.Equal(got, want) {
					t.Errorf("sandboxes are %q, want %q", got, want)
				}
				if n.rt.containers["lost"] != nil {
					t.Error("container without a sandbox is left")
				}
			})
		})
	}
}

// A runtime that ends a start which nobody waits for makes the log of the container, until its sandbox is gone.
func TestLogsGoAfterTheSandbox(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.pass(time.Second)
		dir := spec.LogDirectory(n.cfg.LogDir, p)
		if _, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		}
		n.rt.during = func(_ context.Context, call string) {
			if strings.HasPrefix(call, "RemovePodSandbox") {
				time.Sleep(time.Second) // whoever does not wait for it is done by then
				if err := os.MkdirAll(filepath.Join(dir, "main"), 0o755); err != nil {
					t.Error(err)
				}
			}
		}
		n.remove(p)
		n.pass(time.Minute)
		n.gone(p)
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("log directory after the pod: %v", err)
		}
	})
}

func (f *fake) sandboxOf(pod string) *fakeSandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sandboxes {
		if s.GetMetadata().GetName() == pod {
			return s
		}
	}
	return nil
}
