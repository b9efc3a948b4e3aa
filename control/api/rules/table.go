package rules

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/admissionregistration"
	"github.com/berth-node/berth/control/api/core"
	"github.com/berth-node/berth/control/api/rbac"
)

func table() []group {
	return []group{
		{corev1.SchemeGroupVersion, []row{
			of("ConfigMap", nil, core.ValidateConfigMap, core.ValidateConfigMapUpdate),
			of("Secret", func(o *corev1.Secret) { api.SetObjectDefaults(o) }, core.ValidateSecret, core.ValidateSecretUpdate),
			of("ServiceAccount", nil, core.ValidateServiceAccount, core.ValidateServiceAccountUpdate),
			of("Namespace", core.SetNamespaceDefaults, core.ValidateNamespace, core.ValidateNamespaceUpdate),
			of("LimitRange", core.SetLimitRangeDefaults, core.ValidateLimitRange, core.ValidateLimitRangeUpdate),
			of("ResourceQuota", core.SetResourceQuotaDefaults, core.ValidateResourceQuota, core.ValidateResourceQuotaUpdate),
			of("Event", nil, core.ValidateEvent, core.ValidateEventUpdate),
			of("Service", core.SetServiceDefaults, core.ValidateService, core.ValidateServiceUpdate),
			of("Endpoints", core.SetEndpointsDefaults, core.ValidateEndpoints, core.ValidateEndpointsUpdate),
			of("Node", core.SetNodeDefaults, core.ValidateNode, core.ValidateNodeUpdate),
			of("PersistentVolume", core.SetPersistentVolumeDefaults, core.ValidatePersistentVolume, core.ValidatePersistentVolumeUpdate),
			of("PersistentVolumeClaim", core.SetClaimDefaults, core.ValidateClaim, core.ValidateClaimUpdate),
		}},
		{admissionv1.SchemeGroupVersion, []row{
			of("MutatingWebhookConfiguration", admissionregistration.SetMutatingWebhookDefaults,
				admissionregistration.ValidateMutatingWebhook, admissionregistration.ValidateMutatingWebhookUpdate),
			of("ValidatingWebhookConfiguration", admissionregistration.SetValidatingWebhookDefaults,
				admissionregistration.ValidateValidatingWebhook, admissionregistration.ValidateValidatingWebhookUpdate),
			of("ValidatingAdmissionPolicy", admissionregistration.SetValidatingPolicyDefaults,
				admissionregistration.ValidateValidatingPolicy, admissionregistration.ValidateValidatingPolicyUpdate),
			of("ValidatingAdmissionPolicyBinding", admissionregistration.SetValidatingBindingDefaults,
				admissionregistration.ValidateValidatingBinding, admissionregistration.ValidateValidatingBindingUpdate),
			of("MutatingAdmissionPolicy", admissionregistration.SetMutatingPolicyDefaults,
				admissionregistration.ValidateMutatingPolicy, admissionregistration.ValidateMutatingPolicyUpdate),
			of("MutatingAdmissionPolicyBinding", admissionregistration.SetMutatingBindingDefaults,
				admissionregistration.ValidateMutatingBinding, admissionregistration.ValidateMutatingBindingUpdate),
		}},
		{rbacv1.SchemeGroupVersion, []row{
			of("Role", nil, rbac.ValidateRole, rbac.ValidateRoleUpdate),
			of("ClusterRole", nil, rbac.ValidateClusterRole, rbac.ValidateClusterRoleUpdate),
			of("RoleBinding", func(o *rbacv1.RoleBinding) { rbac.SetBindingDefaults(&o.RoleRef, o.Subjects) },
				rbac.ValidateRoleBinding, rbac.ValidateRoleBindingUpdate),
			of("ClusterRoleBinding", func(o *rbacv1.ClusterRoleBinding) { rbac.SetBindingDefaults(&o.RoleRef, o.Subjects) },
				rbac.ValidateClusterRoleBinding, rbac.ValidateClusterRoleBindingUpdate),
		}},
	}
}
