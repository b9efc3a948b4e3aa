package cri

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/imageapi"
)

// inUse is [imageapi.InUse] for an image of this server, which knows of image volumes too.
func (i *imageService) inUse(ctrs *container.Containers, ref string) error {
	img, err := i.store.Get(ref)
	if err != nil {
		return nil // the removal says so
	}
	var list []*runtimeapi.Container
	for _, c := range ctrs.Table.ByID.All(container.Newest) {
		one := &runtimeapi.Container{Id: c.ID, Metadata: c.Config.GetMetadata(), Labels: c.Config.GetLabels(), ImageId: c.Record().ImageID}
		list = append(list, one)
		for _, m := range c.Config.GetMounts() {
			if v := m.GetImage(); v != nil {
				list = append(list, &runtimeapi.Container{Id: c.ID, Metadata: one.Metadata, Labels: one.Labels, Image: v, ImageRef: v.GetImageRef()})
			}
		}
	}
	return imageapi.InUse(list, img.ID, slices.Concat(img.Tags, img.Digests, []string{img.ID})...)
}
