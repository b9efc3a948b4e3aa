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

// Stuck is a runtime over a runc whose starts of containers hang and then fail, and that neither kills nor deletes them
// while they live, when it is told to.
func (p Program) Stuck() Program {
	p.runc = fmt.Sprintf(stuck, p.bundles.path, p.bundles.container, p.bundles.pid, p.bundles.runc)
	return p
}

// bundles says where a runtime has what it gives runc, below its directory.
type bundles struct {
	path      string // of one, with $1 for the ID
	container string // is in the specification of what is no sandbox
	pid       string // file in a bundle with its first process
	runc      string // program that the runtime runs
}

var (
	containerdBundles = bundles{
		path:      "state/io.containerd.runtime.v2.task/k8s.io/$1",
		container: `"io.kubernetes.cri.container-type": *"container"`,
		pid:       "init.pid", runc: "/usr/sbin/runc",
	}
	crioBundles = bundles{
		path:      "runroot/overlay-containers/$1/userdata",
		container: `"io.kubernetes.cri-o.ContainerType": *"container"`,
		pid:       "pidfile", runc: "$dir/bin/runc",
	}
)

// stuck is runc for [Program.Stuck]. That of a sandbox works: its bundle says what it is of.
const stuck = `#!/bin/sh
dir=${0%%/bin/stuck}
bundle() { echo "$dir/%[1]s"; }
of_container() { grep -q '%[2]s' "$(bundle "$1")/config.json" 2>/dev/null; }
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
  elif [ $act = delete ] && ! kill -0 "$(cat "$(bundle "$id")/%[3]s")"; then
    exec %[4]s "$@"
  fi
  echo stuck >&2
  exit 1
fi
exec %[4]s "$@"
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

// Refused says whether the runtime keeps its only container, whose start has failed: nil if so. containerd says that it
// has exited, and refuses to remove it. CRI-O says that it was never started, and does not answer who wants it to end.
func (r *Runtime) Refused(ctx context.Context) error {
	list, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	if len(list.GetContainers()) != 1 {
		return fmt.Errorf("%d containers", len(list.GetContainers()))
	}
	c := list.GetContainers()[0]
	if r.Release == CRIO134 { // it would go on with the removal when nobody waits for that any more
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
			return fmt.Errorf("container %s: %s", c.GetId(), c.GetState())
		}
		return nil
	}
	if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		return fmt.Errorf("container %s: %s", c.GetId(), c.GetState())
	}
	_, err = r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()})
	if grpcstatus.Code(err) != codes.FailedPrecondition {
		return fmt.Errorf("the removal of container %s: %w", c.GetId(), err)
	}
	return nil
}
