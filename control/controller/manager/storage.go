package manager

import (
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/attachdetach"
	"github.com/berth-node/berth/control/controller/ephemeral"
	"github.com/berth-node/berth/control/controller/expand"
	"github.com/berth-node/berth/control/controller/protection"
	"github.com/berth-node/berth/control/controller/volumebinder"
)

// storageKinds are the controllers of claims and volumes.
func storageKinds() []kind {
	return []kind{
		{name: "persistentvolume-binder-controller", account: "persistent-volume-binder", make: makeBinder},
		{name: "persistentvolumeclaim-protection-controller", account: "pvc-protection-controller", make: makeClaimProtection},
		{name: "persistentvolume-protection-controller", account: "pv-protection-controller", make: makeVolumeProtection},
		{name: "volumeattributesclass-protection-controller", account: "volumeattributesclass-protection-controller", make: makeAttributesProtection},
		{name: "persistentvolume-attach-detach-controller", account: "attachdetach-controller", make: makeAttacher},
		{name: "ephemeral-volume-controller", account: "ephemeral-volume-controller", make: makeEphemeral},
		{name: "persistentvolume-expander-controller", account: "expand-controller", make: makeExpander},
	}
}

func makeBinder(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "persistentvolume-controller", func(events record.EventRecorder) (controller.Controller, error) {
		core := p.own.Core().V1()
		return volumebinder.New(volumebinder.Deps{
			Client: p.client, Pods: p.m.options.Informers.Core().V1().Pods(), Claims: core.PersistentVolumeClaims(),
			Volumes: core.PersistentVolumes(), Classes: p.own.Storage().V1().StorageClasses(), Events: events, Log: p.log,
		})
	})
}

func makeClaimProtection(p parts) (controller.Controller, error) {
	return protection.NewClaims(p.client, p.own.Core().V1().PersistentVolumeClaims(), p.m.options.Informers.Core().V1().Pods(), p.log)
}

func makeVolumeProtection(p parts) (controller.Controller, error) {
	return protection.NewVolumes(p.client, p.own.Core().V1().PersistentVolumes(), p.log), nil
}

func makeAttributesProtection(p parts) (controller.Controller, error) {
	core := p.own.Core().V1()
	return protection.NewAttributesClasses(p.client, p.own.Storage().V1().VolumeAttributesClasses(), core.PersistentVolumeClaims(),
		core.PersistentVolumes(), p.log)
}

func makeEphemeral(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "ephemeral_volume", func(events record.EventRecorder) (controller.Controller, error) {
		return ephemeral.New(p.client, p.m.options.Informers.Core().V1().Pods(), p.own.Core().V1().PersistentVolumeClaims(), events, p.log)
	})
}

func makeExpander(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "volume_expand", func(events record.EventRecorder) (controller.Controller, error) {
		core := p.own.Core().V1()
		return expand.New(core.PersistentVolumeClaims(), core.PersistentVolumes(), events, p.log), nil
	})
}

func makeAttacher(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "attachdetach-controller", func(events record.EventRecorder) (controller.Controller, error) {
		core, storage := p.own.Core().V1(), p.own.Storage().V1()
		return attachdetach.New(attachdetach.Deps{
			Client: p.client, Core: p.m.options.Informers.Core().V1(), Claims: core.PersistentVolumeClaims(), Volumes: core.PersistentVolumes(),
			Attachments: storage.VolumeAttachments(), Drivers: storage.CSIDrivers(), Events: events, Log: p.log,
		})
	})
}
