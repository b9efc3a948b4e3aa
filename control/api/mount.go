package api

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

func (v containers) mounts(c *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := sets.New[string]()
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		p := at.Child("volumeMounts").Index(i)
		vol := v.volumes[m.Name]
		switch {
		case m.Name == "":
			errs = append(errs, field.Required(p.Child("name"), ""))
		case vol == nil:
			errs = append(errs, field.NotFound(p.Child("name"), m.Name))
		}
		errs = append(errs, check.Required(p.Child("mountPath"), m.MountPath)...)
		if paths.Has(m.MountPath) {
			errs = append(errs, field.Invalid(p.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths.Insert(m.MountPath)
		for _, d := range c.VolumeDevices {
			if d.DevicePath == m.MountPath && m.MountPath != "" {
				errs = append(errs, field.Invalid(p.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
			}
			if d.Name == m.Name && m.Name != "" {
				errs = append(errs, field.Invalid(p.Child("name"), m.Name, "must not already exist in volumeDevices"))
			}
		}
		if m.SubPath != "" {
			errs = append(errs, relative(p.Child("subPath"), m.SubPath)...)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				errs = append(errs, field.Invalid(p.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
			}
			errs = append(errs, relative(p.Child("subPathExpr"), m.SubPathExpr)...)
		}
		errs = append(errs, v.mountOptions(c, m, vol, p)...)
	}
	return errs
}

func (v containers) mountOptions(c *corev1.Container, m *corev1.VolumeMount, vol *corev1.Volume, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	propagation := corev1.MountPropagationNone
	if m.MountPropagation != nil {
		propagation = *m.MountPropagation
		at := p.Child("mountPropagation")
		errs = append(errs, check.OneOf(at, propagation, corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)...)
		privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		if propagation == corev1.MountPropagationBidirectional && !privileged {
			errs = append(errs, field.Forbidden(at, "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	if r := m.RecursiveReadOnly; r != nil {
		at := p.Child("recursiveReadOnly")
		errs = append(errs, check.OneOf(at, *r, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)...)
		if *r == corev1.RecursiveReadOnlyIfPossible || *r == corev1.RecursiveReadOnlyEnabled {
			if !m.ReadOnly {
				errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
			}
			if propagation != corev1.MountPropagationNone {
				errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
			}
		}
	}
	seen := sets.New[string]()
	for i, o := range m.BindMountOptions {
		at := p.Child("bindMountOptions").Index(i)
		errs = append(errs, check.OneOf(at, o, "noexec", "nodev", "nosuid")...)
		if seen.Has(o) {
			errs = append(errs, field.Duplicate(at, o))
		}
		seen.Insert(o)
	}
	if len(m.BindMountOptions) > 0 && vol != nil && vol.Image != nil {
		errs = append(errs, field.Forbidden(p.Child("bindMountOptions"), "may not be specified for image volumes"))
	}
	return errs
}

func (v containers) devices(c *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths, names := sets.New[string](), sets.New[string]()
	for i, d := range c.VolumeDevices {
		p := at.Child("volumeDevices").Index(i)
		switch vol := v.volumes[d.Name]; {
		case d.Name == "":
			errs = append(errs, field.Required(p.Child("name"), ""))
		case vol == nil:
			errs = append(errs, field.NotFound(p.Child("name"), d.Name))
		case vol.PersistentVolumeClaim == nil && vol.Ephemeral == nil:
			errs = append(errs, field.Invalid(p.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if names.Has(d.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), d.Name, "must be unique"))
		}
		names.Insert(d.Name)
		errs = append(errs, check.Required(p.Child("devicePath"), d.DevicePath)...)
		errs = append(errs, noBackstep(p.Child("devicePath"), d.DevicePath)...)
		if paths.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(p.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		paths.Insert(d.DevicePath)
	}
	return errs
}

// relative refuses a path that leaves the directory it is taken in.
func relative(p *field.Path, value string) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(value) {
		errs = append(errs, field.Invalid(p, value, "must be a relative path"))
	}
	return append(errs, noBackstep(p, value)...)
}

// noBackstep refuses "..", since whoever follows the path may not start where its writer thinks.
func noBackstep(p *field.Path, value string) field.ErrorList {
	for part := range strings.SplitSeq(value, "/") {
		if part == ".." {
			return field.ErrorList{field.Invalid(p, value, "must not contain '..'")}
		}
	}
	return nil
}

// localPath is a path to a file to be written; names that begin with ".." are those of the writer itself.
func localPath(p *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	errs := relative(p, value)
	if strings.HasPrefix(value, "..") && !strings.HasPrefix(value, "../") && value != ".." {
		errs = append(errs, field.Invalid(p, value, "must not start with '..'"))
	}
	return errs
}
