package rules

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/admissionregistration"
	"github.com/berth-node/berth/control/api/apps"
	"github.com/berth-node/berth/control/api/autoscaling"
	"github.com/berth-node/berth/control/api/batch"
	"github.com/berth-node/berth/control/api/certificates"
	"github.com/berth-node/berth/control/api/cluster"
	"github.com/berth-node/berth/control/api/core"
	"github.com/berth-node/berth/control/api/discovery"
	"github.com/berth-node/berth/control/api/flowcontrol"
	"github.com/berth-node/berth/control/api/networking"
	"github.com/berth-node/berth/control/api/policy"
	"github.com/berth-node/berth/control/api/rbac"
	"github.com/berth-node/berth/control/api/resource"
	"github.com/berth-node/berth/control/api/scheduling"
	"github.com/berth-node/berth/control/api/storage"
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
			of("PodTemplate", core.SetPodTemplateDefaults, core.ValidatePodTemplate, core.ValidatePodTemplateUpdate),
			of("ReplicationController", core.SetControllerDefaults, core.ValidateController, core.ValidateControllerUpdate),
			of("Pod", core.SetPodDefaults, core.ValidatePod, core.ValidatePodUpdate),
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
		{networkingv1.SchemeGroupVersion, []row{
			of("NetworkPolicy", networking.SetNetworkPolicyDefaults, networking.ValidateNetworkPolicy, networking.ValidateNetworkPolicyUpdate),
			of("Ingress", nil, networking.ValidateIngress, networking.ValidateIngressUpdate),
			of("IngressClass", networking.SetIngressClassDefaults, networking.ValidateIngressClass, networking.ValidateIngressClassUpdate),
			of("IPAddress", nil, networking.ValidateIPAddress, networking.ValidateIPAddressUpdate),
			of("ServiceCIDR", nil, networking.ValidateServiceCIDR, networking.ValidateServiceCIDRUpdate),
		}},
		{appsv1.SchemeGroupVersion, []row{
			of("Deployment", apps.SetDeploymentDefaults, apps.ValidateDeployment, apps.ValidateDeploymentUpdate),
			of("ReplicaSet", apps.SetReplicaSetDefaults, apps.ValidateReplicaSet, apps.ValidateReplicaSetUpdate),
			of("StatefulSet", apps.SetStatefulSetDefaults, apps.ValidateStatefulSet, apps.ValidateStatefulSetUpdate),
			of("DaemonSet", apps.SetDaemonSetDefaults, apps.ValidateDaemonSet, apps.ValidateDaemonSetUpdate),
			of("ControllerRevision", nil, apps.ValidateControllerRevision, apps.ValidateControllerRevisionUpdate),
		}},
		{batchv1.SchemeGroupVersion, []row{
			of("Job", batch.SetJobDefaults, batch.ValidateJob, batch.ValidateJobUpdate),
			of("CronJob", batch.SetCronJobDefaults, batch.ValidateCronJob, batch.ValidateCronJobUpdate),
		}},
		{autoscalingv1.SchemeGroupVersion, []row{
			of("HorizontalPodAutoscaler", autoscaling.SetV1Defaults, autoscaling.ValidateV1, autoscaling.ValidateV1Update),
		}},
		{autoscalingv2.SchemeGroupVersion, []row{
			of("HorizontalPodAutoscaler", autoscaling.SetDefaults, autoscaling.Validate, autoscaling.ValidateUpdate),
		}},
		{policyv1.SchemeGroupVersion, []row{
			of("PodDisruptionBudget", nil, policy.ValidateBudget, policy.ValidateBudgetUpdate),
		}},
		{storagev1.SchemeGroupVersion, []row{
			of("StorageClass", func(o *storagev1.StorageClass) { api.SetObjectDefaults(o) }, storage.ValidateStorageClass, storage.ValidateStorageClassUpdate),
			of("CSIDriver", func(o *storagev1.CSIDriver) { api.SetObjectDefaults(o) }, storage.ValidateDriver, storage.ValidateDriverUpdate),
			of("CSINode", nil, storage.ValidateCSINode, storage.ValidateCSINodeUpdate),
			of("VolumeAttachment", storage.SetAttachmentDefaults, storage.ValidateAttachment, storage.ValidateAttachmentUpdate),
			of("VolumeAttributesClass", nil, storage.ValidateAttributesClass, storage.ValidateAttributesClassUpdate),
			of("CSIStorageCapacity", nil, storage.ValidateCapacity, storage.ValidateCapacityUpdate),
		}},
		{schedulingv1.SchemeGroupVersion, []row{
			of("PriorityClass", cluster.SetPriorityClassDefaults, cluster.ValidatePriorityClass, cluster.ValidatePriorityClassUpdate),
		}},
		{schedulingv1beta1.SchemeGroupVersion, []row{
			of("Workload", nil, scheduling.ValidateWorkload, scheduling.ValidateWorkloadUpdate),
			of("PodGroup", scheduling.SetPodGroupDefaults, scheduling.ValidatePodGroup, scheduling.ValidatePodGroupUpdate),
		}},
		{coordinationv1.SchemeGroupVersion, []row{
			of("Lease", nil, cluster.ValidateLease, cluster.ValidateLeaseUpdate),
		}},
		{nodev1.SchemeGroupVersion, []row{
			of("RuntimeClass", nil, cluster.ValidateRuntimeClass, cluster.ValidateRuntimeClassUpdate),
		}},
		{discoveryv1.SchemeGroupVersion, []row{
			of("EndpointSlice", discovery.SetSliceDefaults, discovery.ValidateSlice, discovery.ValidateSliceUpdate),
		}},
		{certificatesv1.SchemeGroupVersion, []row{
			of("CertificateSigningRequest", nil, certificates.ValidateRequest, certificates.ValidateRequestUpdate),
			of("ClusterTrustBundle", nil, certificates.ValidateBundle, certificates.ValidateBundleUpdate),
			of("PodCertificateRequest", certificates.SetPodRequestDefaults, certificates.ValidatePodRequest, certificates.ValidatePodRequestUpdate),
		}},
		{certificatesv1beta1.SchemeGroupVersion, []row{
			of("ClusterTrustBundle", nil, certificates.ValidateOldBundle, certificates.ValidateOldBundleUpdate),
		}},
		{flowcontrolv1.SchemeGroupVersion, []row{
			of("FlowSchema", flowcontrol.SetSchemaDefaults, flowcontrol.ValidateSchema, flowcontrol.ValidateSchemaUpdate),
			of("PriorityLevelConfiguration", flowcontrol.SetLevelDefaults, flowcontrol.ValidateLevel, flowcontrol.ValidateLevelUpdate),
		}},
		{resourcev1.SchemeGroupVersion, []row{
			of("ResourceClaim", resource.SetClaimDefaults, resource.ValidateClaim, resource.ValidateClaimUpdate),
			of("ResourceClaimTemplate", resource.SetTemplateDefaults, resource.ValidateTemplate, resource.ValidateTemplateUpdate),
			of("DeviceClass", nil, resource.ValidateClass, resource.ValidateClassUpdate),
			of("ResourceSlice", resource.SetSliceDefaults, resource.ValidateSlice, resource.ValidateSliceUpdate),
			of("DeviceTaintRule", resource.SetTaintRuleDefaults, resource.ValidateTaintRule, resource.ValidateTaintRuleUpdate),
		}},
		{eventsv1.SchemeGroupVersion, []row{
			of("Event", nil, cluster.ValidateEvent, cluster.ValidateEventUpdate),
		}},
	}
}
