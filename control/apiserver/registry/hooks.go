package registry

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-node/berth/control/api/certificates"
	"github.com/berth-node/berth/control/api/core"
)

func quotaStatus(o, old runtime.Object) field.ErrorList {
	return core.ValidateResourceQuotaStatus(o.(*corev1.ResourceQuota), old.(*corev1.ResourceQuota))
}

func volumeHooks() hooks {
	return hooks{create: func(_ context.Context, o runtime.Object) {
		now := metav1.Now()
		o.(*corev1.PersistentVolume).Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
	}}
}

// volumeStatus says since when a volume is in its phase.
func volumeStatus() part {
	p := statusPart(nil)
	keep := p.prepare
	p.prepare = func(o, old runtime.Object) {
		keep(o, old)
		now, was := &o.(*corev1.PersistentVolume).Status, &old.(*corev1.PersistentVolume).Status
		switch {
		case now.Phase == was.Phase:
			now.LastPhaseTransitionTime = was.LastPhaseTransitionTime
		case now.LastPhaseTransitionTime == nil || now.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime):
			t := metav1.Now()
			now.LastPhaseTransitionTime = &t
		}
	}
	return p
}

func volumeClaimHooks() hooks {
	return hooks{create: func(_ context.Context, o runtime.Object) {
		o.(*corev1.PersistentVolumeClaim).Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	}}
}

// jobHooks give a Job the labels by which it knows its pods, and a selector of them.
func jobHooks() hooks {
	return hooks{create: func(_ context.Context, o runtime.Object) {
		j := o.(*batchv1.Job)
		if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
			return
		}
		if j.Spec.Template.Labels == nil {
			j.Spec.Template.Labels = map[string]string{}
		}
		own := map[string]string{
			"controller-uid": string(j.UID), batchv1.ControllerUidLabel: string(j.UID),
			"job-name": j.Name, batchv1.JobNameLabel: j.Name,
		}
		for k, v := range own {
			if _, taken := j.Spec.Template.Labels[k]; !taken {
				j.Spec.Template.Labels[k] = v
			}
		}
		if j.Spec.Selector == nil {
			j.Spec.Selector = &metav1.LabelSelector{}
		}
		if j.Spec.Selector.MatchLabels == nil {
			j.Spec.Selector.MatchLabels = map[string]string{}
		}
		maps.Copy(j.Spec.Selector.MatchLabels, map[string]string{batchv1.ControllerUidLabel: string(j.UID)})
	}}
}

// daemonHooks count a DaemonSet's templates in an annotation, by which pods older than revisions are told apart.
func daemonHooks() hooks {
	set := func(o *appsv1.DaemonSet, generation int64) {
		if o.Annotations == nil {
			o.Annotations = map[string]string{}
		}
		o.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(generation, 10)
	}
	of := func(o *appsv1.DaemonSet) int64 {
		n, _ := strconv.ParseInt(o.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
		return max(n, 1)
	}
	return hooks{
		create: func(_ context.Context, o runtime.Object) { set(o.(*appsv1.DaemonSet), of(o.(*appsv1.DaemonSet))) },
		update: func(_ context.Context, o, old runtime.Object) {
			now, was := o.(*appsv1.DaemonSet), old.(*appsv1.DaemonSet)
			generation := of(was)
			if !equality.Semantic.DeepEqual(now.Spec.Template, was.Spec.Template) {
				generation++
			}
			set(now, generation)
		},
	}
}

// requestHooks write into a request for a certificate who asks: what it is signed by.
func requestHooks() hooks {
	type csr = certificatesv1.CertificateSigningRequest
	return hooks{
		create: func(ctx context.Context, o runtime.Object) {
			s := &o.(*csr).Spec
			s.Username, s.UID, s.Groups, s.Extra = "", "", nil, nil
			user, ok := request.UserFrom(ctx)
			if !ok {
				return
			}
			s.Username, s.UID, s.Groups = user.GetName(), user.GetUID(), user.GetGroups()
			for k, v := range user.GetExtra() {
				if s.Extra == nil {
					s.Extra = map[string]certificatesv1.ExtraValue{}
				}
				s.Extra[k] = v
			}
		},
		update: func(_ context.Context, o, old runtime.Object) { o.(*csr).Spec = old.(*csr).Spec },
	}
}

func isOf(t certificatesv1.RequestConditionType) func(certificatesv1.CertificateSigningRequestCondition) bool {
	return func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t }
}

func requestParts() []part {
	type csr = certificatesv1.CertificateSigningRequest
	stamp := func(now, was []certificatesv1.CertificateSigningRequestCondition) {
		for i := range now {
			c := &now[i]
			if c.LastUpdateTime.IsZero() {
				c.LastUpdateTime = metav1.Time{Time: time.Now()}
			}
			if !c.LastTransitionTime.IsZero() {
				continue
			}
			c.LastTransitionTime = metav1.Time{Time: time.Now()}
			for _, w := range was {
				if w.Type == c.Type && w.Status == c.Status && !w.LastTransitionTime.IsZero() {
					c.LastTransitionTime = w.LastTransitionTime
				}
			}
		}
	}
	judged := func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
	}
	return []part{
		{name: "status", writes: []string{"status"}, validate: on(certificates.ValidateRequestStatus), prepare: func(o, old runtime.Object) {
			keepBut(o, old, "status")
			now, was := &o.(*csr).Status, old.(*csr).Status
			// A signer does not approve: that is another right. What was decided stays, and where it stood.
			kept := slices.DeleteFunc(slices.Clone(now.Conditions), func(c certificatesv1.CertificateSigningRequestCondition) bool {
				return judged(c) && !slices.ContainsFunc(was.Conditions, isOf(c.Type))
			})
			for _, c := range was.Conditions {
				if !judged(c) {
					continue
				}
				if i := slices.IndexFunc(kept, isOf(c.Type)); i >= 0 {
					kept[i] = c
				} else {
					kept = append(kept, c)
				}
			}
			now.Conditions = kept
			stamp(now.Conditions, was.Conditions)
		}},
		{name: "approval", writes: []string{"status"}, validate: on(certificates.ValidateRequestApproval), prepare: func(o, old runtime.Object) {
			keepBut(o, old, "status")
			now, was := &o.(*csr).Status, old.(*csr).Status
			now.Certificate = was.Certificate
			stamp(now.Conditions, was.Conditions)
		}},
	}
}

// retimeTaintRule has a taint whose effect is another one be added now, where nobody says when.
func retimeTaintRule(_ context.Context, o, old runtime.Object) {
	now, was := &o.(*resourcev1.DeviceTaintRule).Spec.Taint, &old.(*resourcev1.DeviceTaintRule).Spec.Taint
	if now.Effect != was.Effect && now.TimeAdded.Equal(was.TimeAdded) {
		at := metav1.Now()
		now.TimeAdded = &at
	}
}
