package admission

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"
)

const (
	defaultAccount = "default"
	tokenPath      = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolume    = "kube-api-access-"
	// tokenSeconds is an hour and what may pass until the node has it; nodes ask for another one before the end.
	tokenSeconds     = 3607
	enforceMountable = "kubernetes.io/enforce-mountable-secrets"
)

// newServiceAccount gives pods their service account, with its token, its pull secrets and the cluster's authority, and
// refuses those whose account there is not.
func newServiceAccount(g given) (checks, error) {
	accounts := g.informers.Core().V1().ServiceAccounts()
	lister := accounts.Lister()
	find := func(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
		name := pod.Spec.ServiceAccountName
		account, err := lister.ServiceAccounts(a.GetNamespace()).Get(name)
		if apierrors.IsNotFound(err) { // it may be too new for the informers
			account, err = g.client.CoreV1().ServiceAccounts(a.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
		}
		if err != nil {
			return nil, admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), name, err))
		}
		return account, nil
	}
	return checks{
		operations: onWrite(), resources: []string{"pods", "pods/ephemeralcontainers"}, synced: []cache.InformerSynced{accounts.Informer().HasSynced},
		admit: on(func(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
			// A mirror pod is of the node, and has no account: it is looked at when it is validated.
			if a.GetOperation() != admission.Create || a.GetSubresource() != "" || isMirror(pod) {
				return nil
			}
			if pod.Spec.ServiceAccountName == "" {
				pod.Spec.ServiceAccountName = defaultAccount
			}
			pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
			account, err := find(ctx, a, pod)
			if err != nil {
				return err
			}
			if mountsToken(account, pod) {
				mountToken(pod)
			}
			if len(pod.Spec.ImagePullSecrets) == 0 {
				pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
			}
			return nil
		}),
		validate: on(func(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
			switch {
			case a.GetOperation() == admission.Update && a.GetSubresource() == "":
				return nil // what could be wrong there cannot change
			case isMirror(pod) && a.GetOperation() == admission.Create:
				return checkMirror(a, pod)
			case isMirror(pod):
				return nil
			}
			account, err := find(ctx, a, pod)
			if err != nil {
				return err
			}
			if account.Annotations[enforceMountable] != "true" {
				return nil
			}
			return checkMountable(a, account, pod)
		}),
	}, nil
}

func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// checkMirror refuses a mirror pod that refers to objects: a node would give itself what its pods do not need.
func checkMirror(a admission.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return forbid(a, "a mirror pod may not reference service accounts")
	}
	if what := refersTo(pod); what != "" {
		return forbid(a, "a mirror pod may not reference %s", what)
	}
	return nil
}

func mountsToken(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	switch {
	case pod.Spec.AutomountServiceAccountToken != nil:
		return *pod.Spec.AutomountServiceAccountToken
	case account.AutomountServiceAccountToken != nil:
		return *account.AutomountServiceAccountToken
	}
	return true
}

// mountToken puts the token into each container that has nothing at its place.
func mountToken(pod *corev1.Pod) {
	name, there := "", false
	for _, v := range pod.Spec.Volumes {
		if len(v.Name) > len(tokenVolume) && v.Name[:len(tokenVolume)] == tokenVolume {
			name, there = v.Name, true
		}
	}
	if !there {
		name = names.SimpleNameGenerator.GenerateName(tokenVolume)
	}
	mounted := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath }) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
			mounted = true
		}
	}
	if mounted && !there {
		pod.Spec.Volumes = append(pod.Spec.Volumes, tokenSource(name))
	}
}

func tokenSource(name string) corev1.Volume {
	mode := int32(corev1.ProjectedVolumeSourceDefaultMode)
	seconds := int64(tokenSeconds)
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}}}
}

// checkMountable refuses secrets that an account does not list, where it is annotated to be so strict.
func checkMountable(a admission.Attributes, account *corev1.ServiceAccount, pod *corev1.Pod) error {
	listed := func(name string) bool {
		return slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == name })
	}
	pulls := func(name string) bool {
		return slices.Contains(account.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !listed(v.Secret.SecretName) {
			return forbid(a, "volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", v.Secret.SecretName, account.Name)
		}
	}
	var env []corev1.EnvVar
	var from []corev1.EnvFromSource
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		env, from = append(env, c.Env...), append(from, c.EnvFrom...)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		env, from = append(env, c.Env...), append(from, c.EnvFrom...)
	}
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !listed(e.ValueFrom.SecretKeyRef.Name) {
			return forbid(a, "envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
				e.Name, e.ValueFrom.SecretKeyRef.Name, account.Name)
		}
	}
	for _, f := range from {
		if f.SecretRef != nil && !listed(f.SecretRef.Name) {
			return forbid(a, "envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
				f.SecretRef.Name, account.Name)
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		if !pulls(s.Name) {
			return forbid(a, "imagePullSecrets %q is not allowed because service account %s does not reference that imagePullSecret", s.Name, account.Name)
		}
	}
	return nil
}
