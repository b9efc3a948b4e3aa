package cri

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/keeper"
)

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeServer(t, w, dir)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var got []*runtimeapi.ContainerEventResponse
		done := make(chan error)
		go func() {
			done <- s.Events(ctx, func(e *runtimeapi.ContainerEventResponse) { got = append(got, e) })
		}()
		synctest.Wait()
		pod := runPod(t, s, "a")
		id := createContainer(t, s, pod, "c")
		startContainer(t, s, id)
		w.keeper(pod).exit(keeper.Exit{ContainerID: id, Code: 7})
		synctest.Wait()
		if err := removePod(t, s, pod); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		var list []string
		for _, e := range got {
			name := map[string]string{pod: "pod", id: "c"}[e.ContainerId]
			kind := strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
			list = append(list, name+" "+kind)
			if name == "c" && kind == "STOPPED" && (e.ContainersStatuses[0].ExitCode != 7 || e.PodSandboxStatus.Id != pod) {
				t.Errorf("the event does not say what happened: %v", e)
			}
		}
		want := "pod CREATED,pod STARTED,c CREATED,c STARTED,c STOPPED,pod STOPPED,c DELETED,pod DELETED"
		if s := strings.Join(list, ","); s != want {
			t.Errorf("got %s", s)
		}
	})
}

// TestNewestContainerComesFirst: kubelet takes the first container of a name for the one that counts.
func TestNewestContainerComesFirst(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeServer(t, w, dir)
		defer s.Close()
		pod := runPod(t, s, "a")
		var want []string
		for _, name := range []string{"first", "second", "third"} {
			want = append([]string{createContainer(t, s, pod, name)}, want...)
			time.Sleep(time.Second)
		}
		r, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		var got []string
		for _, c := range r.GetContainersStatuses() {
			got = append(got, c.GetId())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	})
}
