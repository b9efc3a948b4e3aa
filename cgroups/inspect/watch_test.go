package inspect

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

// lines collects what is written and lets a test wait for a line.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) wait(t *testing.T, words ...string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		for line := range strings.Lines(text) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return
			}
		}
		select {
		case <-l.more:
		case <-late:
			t.Fatalf("no line with %q in\n%s", words, text)
		}
	}
}

// The kernel tells: with an hour between two looks nothing is seen by looking.
func TestWatchIsTold(t *testing.T) {
	live, h, pods := node(t)
	tree := cgroups.NewTree(h, live.CgroupRoot, nil)
	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{more: make(chan struct{}, 1)}
	ended := make(chan error)
	go func() { ended <- (&app{live: live}).watch(ctx, out, time.Hour) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	// Until a new group is told of, what happens may be before the watching has begun.
	web := tree.PodPath(&pods[1])
	begun := false
	for i := 0; !begun && i < 600; i++ {
		path := fmt.Sprintf("%s/try%d", web, i)
		if err := h.Create(path, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-out.more:
			begun = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	out.wait(t, "created", "default/web/try")

	memory := func(n int64) *cgroups.Target {
		p := pods[1].DeepCopy()
		p.Spec.Containers[0].Resources = makeContainer("x", nil, amount("memory", fmt.Sprint(n), "cpu", "100m")).Resources
		return &cgroups.Target{Resources: cgroups.ContainerResources(p, &p.Spec.Containers[0])}
	}
	victim := web + "/victim"
	if err := h.Create(victim, memory(8<<20).Resources); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "created", "default/web/victim")
	if err := h.Update(victim, memory(16<<20).Resources); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "limit", "default/web/victim", "memory 8Mi -> 16Mi")
	start(t, h, victim, "tail /dev/zero")
	out.wait(t, "oom", "default/web/victim", "killed at")

	// The busy container of the pod is stopped most of the time.
	if kernelHas(6, 5) && triggers(h, web) {
		out.wait(t, "pressure", "default/web ", "cpu: tasks waited")
	} else {
		t.Log("the kernel gives no pressure triggers here")
	}
	if err := tree.RemovePod(t.Context(), pods[1].UID, ""); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "removed", "default/web/victim")
	out.wait(t, "removed", "default/web ", "pod")
}

// triggers says whether the kernel lets us be told of pressure.
func triggers(h *cgroups.Hierarchy, group string) bool {
	fd, err := unix.Open(h.Dir("", group)+"/cpu.pressure", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, append([]byte(pressureTrigger), 0))
	return err == nil
}
