package csi

import (
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	corev1 "k8s.io/api/core/v1"
)

// labelOf is the SELinux label that the files of a volume are to have, "" where they keep their own: the kernel knows
// no such labels, no container that has the volume says which it has, or the pod wants each file relabelled.
func labelOf(pod *corev1.Pod, volume string) (string, error) {
	if !selinux.GetEnabled() {
		return "", nil
	}
	wanted, err := optionsOf(pod, volume)
	if err != nil || wanted == nil {
		return "", err
	}
	var options []string
	for name, value := range map[string]string{"user": wanted.User, "role": wanted.Role, "type": wanted.Type, "level": wanted.Level} {
		if value != "" {
			options = append(options, name+":"+value)
		}
	}
	process, mount, err := label.InitLabels(options)
	if err != nil {
		return "", fmt.Errorf("find the SELinux label of the volume: %w", err)
	}
	selinux.ReleaseLabel(process)
	return mount, nil
}

// optionsOf are the options that all containers with the volume have in common. A file system has one label for all.
func optionsOf(pod *corev1.Pod, volume string) (*corev1.SELinuxOptions, error) {
	var of *corev1.SELinuxOptions
	s := pod.Spec.SecurityContext
	if s != nil {
		of = s.SELinuxOptions
		if p := s.SELinuxChangePolicy; p != nil && *p == corev1.SELinuxChangePolicyRecursive {
			return nil, nil
		}
	}
	var found *corev1.SELinuxOptions
	first := true
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if !mounts(c, volume) {
				continue
			}
			own := of
			if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
				own = c.SecurityContext.SELinuxOptions
			}
			if !first && !sameOptions(found, own) {
				return nil, fmt.Errorf("containers of the pod have different seLinuxOptions, and its driver labels the volume as a whole")
			}
			found, first = own, false
		}
	}
	return found, nil
}

func mounts(c *corev1.Container, volume string) bool {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].Name == volume {
			return true
		}
	}
	return false
}

func sameOptions(a, b *corev1.SELinuxOptions) bool {
	return a == b || a != nil && b != nil && *a == *b
}
