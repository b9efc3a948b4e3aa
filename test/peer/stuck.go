package peer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Stuck is a containerd over a runc whose starts of containers hang and then fail, and that neither kills nor deletes
// them while they live, when it is told to.
func (p Program) Stuck() Program {
	p.runc = stuck
	return p
}

// stuck is runc for [Program.Stuck]. That of a sandbox works: its bundle says what it is of.
const stuck = `#!/bin/sh
dir=${0%/bin/runc}
of_container() {
  bundle=$dir/state/io.containerd.runtime.v2.task/k8s.io/$1
  grep -q '"io.kubernetes.cri.container-type":"container"' $bundle/config.json 2>/dev/null
}
for word; do
  case $word in
  start|kill|delete) act=$word ;;
  *) [ -z "$act" ] || ! of_container "$word" || { id=$word; break; } ;;
  esac
done
if [ -e $dir/stuck ] && [ -n "$id" ]; then
  if [ $act = start ]; then
    : > $dir/starting
    while [ -e $dir/starting ]; do sleep 0.05; done
  elif [ $act = delete ] && ! kill -0 "$(cat $bundle/init.pid)"; then
    exec /usr/sbin/runc "$@"
  fi
  echo stuck >&2
  exit 1
fi
exec /usr/sbin/runc "$@"
`

// Stick has the starts of containers hang from now on.
func (r *Runtime) Stick(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(r.Dir, "stuck"), nil, 0o644))
}

// Starting says whether a start hangs.
func (r *Runtime) Starting() bool {
	_, err := os.Stat(filepath.Join(r.Dir, "starting"))
	return err == nil
}

// FailStart ends the start that hangs. What it has left cannot be killed.
func (r *Runtime) FailStart() { _ = os.Remove(filepath.Join(r.Dir, "starting")) }

// Unstick makes all work again.
func (r *Runtime) Unstick() { _ = os.Remove(filepath.Join(r.Dir, "stuck")) }

// Refused says whether the runtime refuses to remove its only container, which has exited: nil if so.
func (r *Runtime) Refused(ctx context.Context) error {
	list, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	if len(list.GetContainers()) != 1 {
		return fmt.Errorf("%d containers", len(list.GetContainers()))
	}
	c := list.GetContainers()[0]
	if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		return fmt.Errorf("container %s: %s", c.GetId(), c.GetState())
	}
	_, err = r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()})
	if grpcstatus.Code(err) != codes.FailedPrecondition {
		return fmt.Errorf("the removal of container %s: %w", c.GetId(), err)
	}
	return nil
}
