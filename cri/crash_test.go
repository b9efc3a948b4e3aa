package cri

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// crashingLife takes a pod with two containers through its whole life, as far as that goes: what it calls may be gone.
func crashingLife(ctx context.Context, s *Server) error {
	pod := podConfig("a")
	own := &runtimeapi.NamespaceOption{UsernsOptions: ownIDs(65536)}
	pod.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: own}
	r, err := s.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return err
	}
	var ids []string
	for _, n := range []string{"c", "d"} {
		cfg := containerConfig(n)
		cfg.Linux.SecurityContext.NamespaceOptions = own
		c, err := s.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: r.PodSandboxId, Config: cfg})
		if err != nil {
			return err
		}
		ids = append(ids, c.ContainerId)
		if _, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
			return err
		}
	}
	if _, err := s.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ids[0], Timeout: 30}); err != nil {
		return err
	}
	if _, err := s.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: ids[0]}); err != nil {
		return err
	}
	if _, err := s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: r.PodSandboxId}); err != nil {
		return err
	}
	_, err = s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
	return err
}

// TestCrashAtEveryPoint stops a server dead before and after each of its steps and lets another one take over.
func TestCrashAtEveryPoint(t *testing.T) {
	points := 0
	for n := 1; ; n++ {
		w, dir := newWorld(), t.TempDir()
		s := fakeServer(t, w, dir)
		var count atomic.Int64
		crashed, finished := make(chan string, 1), make(chan struct{})
		s.core.host.Steps.At = func(point string) {
			switch i := count.Add(1); {
			case i == int64(n):
				crashed <- point
				select {}
			case i > int64(n):
				select {}
			}
		}
		go func() {
			_ = crashingLife(context.Background(), s)
			close(finished)
		}()
		var point string
		select {
		case point = <-crashed:
			w = w.as() // what the dead one is in the middle of, beside the point, happens in no world any more
			points++
		case <-finished:
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if points < 40 {
				t.Errorf("only %d points were seen", points)
			}
			return
		}
		s.core.tasks.Cancel()
		if err := s.core.db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := checkTakeover(t, w, fakeServer(t, w, dir)); err != nil {
			t.Errorf("died at point %d, %s: %v", n, point, err)
		}
	}
}

func checkTakeover(t *testing.T, w *fakeWorld, s *Server) error {
	defer s.Close()
	ctx := t.Context()
	explained := map[string]bool{}
	for _, p := range s.core.pods.Table.List(nil) {
		explained[p.Id] = true
		if ready := p.State == runtimeapi.PodSandboxState_SANDBOX_READY; ready != (w.keeper(p.Id) != nil) {
			return fmt.Errorf("sandbox is %v, keeper %v", p.State, w.keeper(p.Id))
		}
	}
	for _, c := range s.core.ctrs.Table.List(nil) {
		explained[c.Id] = true
		k := w.keeper(c.PodSandboxId)
		running := k != nil && func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.running[c.Id] }()
		// An exit may be on its way from the keeper; the other way round would be a container nobody knows of.
		if running && c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("container is %v and runs", c.State)
		}
	}
	for _, thing := range w.left() {
		ok := false
		for id := range explained {
			ok = ok || strings.Contains(thing, id)
		}
		if !ok {
			return fmt.Errorf("%q is explained by no record", thing)
		}
	}
	for _, p := range s.core.pods.Table.List(nil) {
		if _, err := s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.Id}); err != nil {
			return err
		}
	}
	if l := w.left(); len(l) > 0 {
		return fmt.Errorf("after removing all there is %q", l)
	}
	// The names are free.
	err := crashingLife(ctx, s)
	if l := w.left(); len(l) > 0 || err != nil {
		return fmt.Errorf("after another life there is %q: %w", l, err)
	}
	return nil
}
