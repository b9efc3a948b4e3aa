package container

import (
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/oci"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func containerStatus(c *Container) *runtimeapi.ContainerStatus {
	rec := c.Record()
	st := &runtimeapi.ContainerStatus{
		Id: c.ID, Metadata: c.Config.GetMetadata(), State: c.state(rec),
		CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, FinishedAt: rec.FinishedAt, ExitCode: rec.ExitCode,
		Image: ImageSpec(c.Config.GetImage(), rec), ImageRef: rec.ImageRef, ImageId: rec.ImageID, Reason: rec.Reason, Message: rec.Message,
		Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(), Mounts: c.Config.GetMounts(), LogPath: rec.LogPath,
		StopSignal: oci.SignalOf(unix.Signal(rec.StopSignal)),
		User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
			Uid: int64(rec.User.UID), Gid: int64(rec.User.GID),
		}},
	}
	if st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING && st.GetStartedAt() == 0 {
		st.StartedAt = rec.CreatedAt // at the earliest
	}
	for _, g := range rec.User.AdditionalGids {
		st.User.Linux.SupplementalGroups = append(st.User.Linux.SupplementalGroups, int64(g))
	}
	res := &runtimeapi.LinuxContainerResources{}
	if ledger.Decode(rec.Resources, res) == nil && len(rec.Resources) > 0 {
		st.Resources = &runtimeapi.ContainerResources{Linux: res}
	}
	return st
}

// ImageSpec names the image as clients know it: by a tag, where the container was asked for by ID.
func ImageSpec(asked *runtimeapi.ImageSpec, rec Record) *runtimeapi.ImageSpec {
	name := rec.ImageName
	if name == "" {
		name = asked.GetImage()
	}
	return &runtimeapi.ImageSpec{
		Image: name, Annotations: asked.GetAnnotations(), UserSpecifiedImage: asked.GetUserSpecifiedImage(), RuntimeHandler: asked.GetRuntimeHandler(),
	}
}
