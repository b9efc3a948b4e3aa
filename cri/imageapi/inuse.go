package imageapi

import (
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// InUse is the error of removing an image that containers have: all of them, also those that have ended, since the next
// of their pod needs it again. It is nil where there are none. id and names are the image's.
func InUse(containers []*runtimeapi.Container, id string, names ...string) error {
	var users []string
	for _, c := range containers {
		used := c.GetImageId() == id || c.GetImageRef() == id || slices.Contains(names, c.GetImageRef()) || slices.Contains(names, c.GetImage().GetImage())
		if used {
			users = append(users, nameOf(c))
		}
	}
	if len(users) == 0 {
		return nil
	}
	slices.Sort(users)
	users = slices.Compact(users)
	more := ""
	if n := len(users) - 3; n > 0 {
		users, more = users[:3], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("image is in use by %s%s; --force removes it nevertheless", strings.Join(users, ", "), more)
}

// nameOf is NAMESPACE/POD/CONTAINER by the labels that kubelet has for that, where there are such.
func nameOf(c *runtimeapi.Container) string {
	l := c.GetLabels()
	if pod := l["io.kubernetes.pod.name"]; pod != "" {
		return l["io.kubernetes.pod.namespace"] + "/" + pod + "/" + c.GetMetadata().GetName()
	}
	id := c.GetId()
	return "container " + c.GetMetadata().GetName() + " (" + id[:min(len(id), 13)] + ")"
}
