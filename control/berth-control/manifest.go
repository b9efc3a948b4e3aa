package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/internal/commandline"
)

func newManifest(d *data) *cobra.Command {
	var image string
	c := &cobra.Command{
		Use: "manifest --image IMAGE [-- SERVE-FLAG...]", Short: "Print a static pod that serves, for a node's manifest directory",
		Long: `Print the manifest of a static pod that serves. Put it into the manifest directory of a node, as of berth or a kubelet.
The image is one whose entrypoint is berth-control. The data directory is that of this machine, with all that other
commands need: run them on the machine itself. What follows -- are flags of berth-control serve.`,
		Example: "  berth-control manifest --image registry.example.org/berth-control:1 > /etc/berth/manifests/berth-control.yaml",
		RunE: func(c *cobra.Command, args []string) error {
			if image == "" {
				return commandline.Usagef("--image: the pod needs one")
			}
			f, err := serveArgs(c, args)
			if err != nil {
				return err
			}
			if f.port == 0 {
				return commandline.Usagef("--port 0: probes need to know the port")
			}
			dir, err := filepath.Abs(d.dir)
			if err != nil {
				return err
			}
			pod := staticPod(dir, image, f, args)
			text, err := yaml.Marshal(struct {
				metav1.TypeMeta `json:",inline"`
				Meta            metav1.ObjectMeta `json:"metadata"`
				Spec            corev1.PodSpec    `json:"spec"`
			}{pod.TypeMeta, pod.ObjectMeta, pod.Spec})
			if err != nil {
				return fmt.Errorf("write manifest: %w", err)
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	c.Flags().StringVar(&image, "image", "", "image whose entrypoint is berth-control")
	_ = c.MarkFlagRequired("image") // it is a flag
	return c
}

// staticPod is the control plane as a pod of a node that has no API server yet.
func staticPod(dir, image string, f *serveFlags, args []string) *corev1.Pod {
	no, yes, kind := false, true, corev1.HostPathDirectoryOrCreate
	host := local(f.bind)
	if host == "" {
		host = "127.0.0.1"
	}
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Host: host, Path: path, Port: intstr.FromInt(f.port), Scheme: corev1.URISchemeHTTPS,
			}},
			PeriodSeconds: period, TimeoutSeconds: 15, FailureThreshold: failures,
		}
	}
	c := corev1.Container{
		Name: "berth-control", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
		Args:      append([]string{"serve", "--data-dir", dir}, args...),
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("256Mi")}},
		// A new member is not ready until it has all objects, and is left alone for as long as that may take.
		StartupProbe: probe("/livez", 5, 6*35*2),
		// A member that waits for the others is not helped by a new start.
		LivenessProbe:  probe("/livez?exclude=etcd", 10, 8),
		ReadinessProbe: probe("/readyz", 5, 3),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: dir}},
	}
	if uid, gid, ok := owner(dir); ok {
		c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = &uid, &gid
	}
	grace := int64(90) // as the unit has it: requests under way are answered
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "berth-control", Namespace: metav1.NamespaceSystem, Labels: map[string]string{"component": "berth-control", "tier": "control-plane"},
		},
		Spec: corev1.PodSpec{
			HostNetwork: true, PriorityClassName: "system-node-critical", TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{c},
			Volumes: []corev1.Volume{{
				Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &kind}},
			}},
		},
	}
}

// owner is whose a data directory is that is there already. Without privileges nobody else enters it.
func owner(dir string) (uid, gid int64, ok bool) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return int64(st.Uid), int64(st.Gid), ok
}
