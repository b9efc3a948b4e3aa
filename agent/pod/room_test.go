package pod

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/internal/disk"
)

// fullVolumes have no room for a while.
type fullVolumes struct {
	Volumes
	full *int
}

func (v fullVolumes) Setup(ctx context.Context, pod *corev1.Pod, content volume.Content) (map[string]string, error) {
	if *v.full > 0 {
		return nil, fmt.Errorf("make volume: %w", unix.ENOSPC)
	}
	return v.Volumes.Setup(ctx, pod, content)
}

// A part of a pod that has no room is made again as soon as there is some, and only as long as some can be made.
func TestRoomIsMade(t *testing.T) {
	for _, part := range []string{"RunPodSandbox", "CreateContainer", "volumes"} {
		for name, c := range map[string]struct {
			needs, has int
			want       string
		}{
			"enough":     {1, 1, "Running main:0:running"},
			"too little": {1, 0, "Pending"},
		} {
			t.Run(part+"/"+name, func(t *testing.T) {
				onNode(t, func(n *testNode) {
					needs, has := c.needs, c.has
					n.stop()
					n.cfg.Images.Room = func(_ context.Context, since time.Time) (bool, error) {
						if since.After(time.Now()) || has == 0 {
							return false, nil
						}
						has, needs = has-1, needs-1
						return true, nil
					}
					if part == "volumes" {
						n.cfg.Volumes = fullVolumes{n.cfg.Volumes, &needs}
					}
					n.start()
					n.rt.refuse = func(call string) error {
						if needs > 0 && strings.HasPrefix(call, part) {
							return fmt.Errorf("make directory: %w", unix.ENOSPC)
						}
						return nil
					}
					n.apply(podtest.New("web")) // no time passes, so that nothing is tried again by itself
					if got := describe(n.pod("web")); !strings.HasPrefix(got, c.want) {
						t.Errorf("the pod is %s, not %s", got, c.want)
					}
					if made := len(n.rt.sandboxes); made > 1 {
						t.Errorf("the pod has %d sandboxes", made)
					}
				})
			})
		}
	}
}

// TestRoomIsBounded has a part of a pod that never has room, and room made as often as one asks: that is images of
// other pods.
func TestRoomIsBounded(t *testing.T) {
	onNode(t, func(n *testNode) {
		made := 0
		n.stop()
		n.cfg.Images.Room = func(context.Context, time.Time) (bool, error) { made++; return made < 100, nil }
		n.start()
		n.rt.refuse = func(call string) error {
			if strings.HasPrefix(call, "CreateContainer") {
				return fmt.Errorf("make directory: %w", unix.ENOSPC)
			}
			return nil
		}
		n.apply(podtest.New("web"))
		if made != disk.Tries-1 {
			t.Errorf("room was made %d times for one attempt", made)
		}
	})
}
