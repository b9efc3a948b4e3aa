package registry

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-node/berth/control/api/certificates"
)

// eventLife is how long an event is kept, in seconds.
const eventLife = 60 * 60

// rows is the table of what is stored, as the version that it is stored in.
func rows() []group {
	return []group{
		{corev1.SchemeGroupVersion, coreRows()},
		{appsv1.SchemeGroupVersion, workloadRows()},
		{batchv1.SchemeGroupVersion, []resource{
			{
				name: "jobs", object: &batchv1.Job{}, list: &batchv1.JobList{}, traits: namespaced | inAll | status | counted | cached,
				columns: jobColumns(), fields: jobFields, hooks: jobHooks(),
			},
			{
				name: "cronjobs", object: &batchv1.CronJob{}, list: &batchv1.CronJobList{}, traits: namespaced | inAll | status | counted,
				short: "cj", columns: cronJobColumns(),
			},
		}},
		{autoscalingv2.SchemeGroupVersion, []resource{
			{
				name: "horizontalpodautoscalers", object: &autoscalingv2.HorizontalPodAutoscaler{}, list: &autoscalingv2.HorizontalPodAutoscalerList{},
				traits: namespaced | inAll | status, short: "hpa", columns: autoscalerColumns(),
			},
		}},
		{policyv1.SchemeGroupVersion, []resource{
			{
				name: "poddisruptionbudgets", object: &policyv1.PodDisruptionBudget{}, list: &policyv1.PodDisruptionBudgetList{},
				traits: namespaced | status | counted | careful, short: "pdb", columns: budgetColumns(),
			},
		}},
		{networkingv1.SchemeGroupVersion, networkingRows()},
		{discoveryv1.SchemeGroupVersion, []resource{
			{
				name: "endpointslices", object: &discoveryv1.EndpointSlice{}, list: &discoveryv1.EndpointSliceList{},
				traits: namespaced | counted | cached, columns: endpointSliceColumns(),
			},
		}},
		{coordinationv1.SchemeGroupVersion, []resource{
			{
				name: "leases", object: &coordinationv1.Lease{}, list: &coordinationv1.LeaseList{},
				traits: namespaced | createOnUpdate | careful, columns: leaseColumns(),
			},
		}},
		{nodev1.SchemeGroupVersion, []resource{
			{
				name: "runtimeclasses", object: &nodev1.RuntimeClass{}, list: &nodev1.RuntimeClassList{},
				traits: cached | createOnUpdate | careful, columns: runtimeClassColumns(),
			},
		}},
		{schedulingv1.SchemeGroupVersion, []resource{
			{
				name: "priorityclasses", object: &schedulingv1.PriorityClass{}, list: &schedulingv1.PriorityClassList{},
				traits: counted, short: "pc", columns: priorityClassColumns(),
			},
		}},
		{schedulingv1beta1.SchemeGroupVersion, podGroupRows()},
		{storagev1.SchemeGroupVersion, storageRows()},
		{rbacv1.SchemeGroupVersion, []resource{
			{name: "roles", object: &rbacv1.Role{}, list: &rbacv1.RoleList{}, traits: namespaced | createOnUpdate, columns: roleColumns()},
			{name: "clusterroles", object: &rbacv1.ClusterRole{}, list: &rbacv1.ClusterRoleList{}, traits: createOnUpdate, columns: roleColumns()},
			{
				name: "rolebindings", object: &rbacv1.RoleBinding{}, list: &rbacv1.RoleBindingList{},
				traits: namespaced | createOnUpdate, columns: bindingColumns(),
			},
			{
				name: "clusterrolebindings", object: &rbacv1.ClusterRoleBinding{}, list: &rbacv1.ClusterRoleBindingList{},
				traits: createOnUpdate, columns: bindingColumns(),
			},
		}},
		{admissionv1.SchemeGroupVersion, admissionRows()},
		{certificatesv1.SchemeGroupVersion, []resource{
			{
				name: "certificatesigningrequests", object: &certificatesv1.CertificateSigningRequest{},
				list: &certificatesv1.CertificateSigningRequestList{}, traits: status, short: "csr", columns: requestColumns(), fields: requestFields,
				hooks: requestHooks(), parts: requestParts(),
			},
			{
				name: "clustertrustbundles", object: &certificatesv1.ClusterTrustBundle{}, list: &certificatesv1.ClusterTrustBundleList{},
				fields: bundleFields, columns: bundleColumns(),
			},
			{
				name: "podcertificaterequests", object: &certificatesv1.PodCertificateRequest{}, list: &certificatesv1.PodCertificateRequestList{},
				traits: namespaced | status, fields: podRequestFields, columns: podRequestColumns(),
				parts: []part{statusPart(on(certificates.ValidatePodRequestStatus))},
			},
		}},
		{flowcontrolv1.SchemeGroupVersion, []resource{
			{
				name: "flowschemas", object: &flowcontrolv1.FlowSchema{}, list: &flowcontrolv1.FlowSchemaList{},
				traits: status | counted, columns: flowSchemaColumns(), order: byPrecedence,
			},
			{
				name: "prioritylevelconfigurations", object: &flowcontrolv1.PriorityLevelConfiguration{},
				list: &flowcontrolv1.PriorityLevelConfigurationList{}, traits: status | counted, columns: priorityLevelColumns(),
			},
		}},
		{resourcev1.SchemeGroupVersion, []resource{
			{
				name: "resourceclaims", object: &resourcev1.ResourceClaim{}, list: &resourcev1.ResourceClaimList{},
				traits: namespaced | status, columns: claimColumns(),
			},
			{
				name: "resourceclaimtemplates", object: &resourcev1.ResourceClaimTemplate{}, list: &resourcev1.ResourceClaimTemplateList{},
				traits: namespaced,
			},
			{name: "deviceclasses", object: &resourcev1.DeviceClass{}, list: &resourcev1.DeviceClassList{}, traits: counted},
			{
				name: "devicetaintrules", object: &resourcev1.DeviceTaintRule{}, list: &resourcev1.DeviceTaintRuleList{}, traits: status | counted,
				hooks: hooks{update: retimeTaintRule},
			},
			{
				name: "resourceslices", object: &resourcev1.ResourceSlice{}, list: &resourcev1.ResourceSliceList{},
				traits: counted | cached, fields: sliceFields, index: "spec.nodeName", columns: resourceSliceColumns(),
			},
		}},
	}
}

func coreRows() []resource {
	return []resource{
		{
			name: "pods", object: &corev1.Pod{}, list: &corev1.PodList{}, traits: namespaced | inAll | status | counted | cached, short: "po",
			columns: podColumns(), fields: podFields, index: "spec.nodeName", hooks: hooks{create: createPod}, parts: podParts(),
		},
		{
			name: "nodes", object: &corev1.Node{}, list: &corev1.NodeList{}, traits: status | reports | cached, short: "no",
			columns: nodeColumns(), fields: nodeFields, index: "metadata.name",
		},
		{
			name: "namespaces", object: &corev1.Namespace{}, list: &corev1.NamespaceList{}, traits: status | cached, short: "ns",
			columns: namespaceColumns(), fields: namespaceFields, hooks: namespaceHooks(),
		},
		{
			name: "configmaps", object: &corev1.ConfigMap{}, list: &corev1.ConfigMapList{}, traits: namespaced | cached, short: "cm",
			columns: configMapColumns(), index: "metadata.name",
		},
		{
			name: "secrets", object: &corev1.Secret{}, list: &corev1.SecretList{}, traits: namespaced | cached,
			columns: secretColumns(), fields: secretFields, index: "metadata.name",
		},
		{
			name: "serviceaccounts", object: &corev1.ServiceAccount{}, list: &corev1.ServiceAccountList{}, traits: namespaced | cached, short: "sa",
		},
		{
			name: "services", object: &corev1.Service{}, list: &corev1.ServiceList{}, traits: namespaced | inAll | status | cached | createOnUpdate,
			short: "svc", columns: serviceColumns(), fields: serviceFields,
		},
		{
			name: "endpoints", object: &corev1.Endpoints{}, list: &corev1.EndpointsList{}, traits: namespaced | createOnUpdate, short: "ep",
			columns: endpointsColumns(),
		},
		{
			name: "events", object: &corev1.Event{}, list: &corev1.EventList{}, traits: namespaced | createOnUpdate, short: "ev",
			columns: eventColumns(), fields: eventFields, ttl: eventLife,
		},
		{
			name: "limitranges", object: &corev1.LimitRange{}, list: &corev1.LimitRangeList{}, traits: namespaced | createOnUpdate, short: "limits",
			columns: createdColumns(),
		},
		{
			name: "resourcequotas", object: &corev1.ResourceQuota{}, list: &corev1.ResourceQuotaList{}, traits: namespaced | status, short: "quota",
			columns: quotaColumns(), parts: []part{statusPart(quotaStatus)},
		},
		{
			name: "persistentvolumes", object: &corev1.PersistentVolume{}, list: &corev1.PersistentVolumeList{}, traits: status, short: "pv",
			columns: volumeColumns(), hooks: volumeHooks(), parts: []part{volumeStatus()},
		},
		{
			name: "persistentvolumeclaims", object: &corev1.PersistentVolumeClaim{}, list: &corev1.PersistentVolumeClaimList{},
			traits: namespaced | status, short: "pvc", columns: volumeClaimColumns(), hooks: volumeClaimHooks(),
		},
		{
			name: "podtemplates", object: &corev1.PodTemplate{}, list: &corev1.PodTemplateList{}, traits: namespaced | counted,
			columns: podTemplateColumns(),
		},
		{
			name: "replicationcontrollers", object: &corev1.ReplicationController{}, list: &corev1.ReplicationControllerList{},
			traits: namespaced | inAll | status | counted, short: "rc", columns: controllerColumns(), fields: controllerFields,
			scale: controllerScale(),
		},
	}
}

func workloadRows() []resource {
	return []resource{
		{
			name: "deployments", object: &appsv1.Deployment{}, list: &appsv1.DeploymentList{}, traits: namespaced | inAll | status | counted | cached,
			short: "deploy", columns: deploymentColumns(), scale: deploymentScale(),
		},
		{
			name: "replicasets", object: &appsv1.ReplicaSet{}, list: &appsv1.ReplicaSetList{}, traits: namespaced | inAll | status | counted | cached,
			short: "rs", columns: replicaSetColumns(), fields: replicaSetFields, scale: replicaSetScale(),
		},
		{
			name: "statefulsets", object: &appsv1.StatefulSet{}, list: &appsv1.StatefulSetList{}, traits: namespaced | inAll | status | counted,
			short: "sts", columns: statefulSetColumns(), scale: statefulSetScale(),
		},
		{
			name: "daemonsets", object: &appsv1.DaemonSet{}, list: &appsv1.DaemonSetList{}, traits: namespaced | inAll | status | counted, hooks: daemonHooks(),
			short: "ds", columns: daemonSetColumns(),
		},
		{
			name: "controllerrevisions", object: &appsv1.ControllerRevision{}, list: &appsv1.ControllerRevisionList{}, traits: namespaced,
			columns: revisionColumns(),
		},
	}
}

func networkingRows() []resource {
	return []resource{
		{
			name: "ingresses", object: &networkingv1.Ingress{}, list: &networkingv1.IngressList{}, traits: namespaced | status | counted,
			short: "ing", columns: ingressColumns(),
		},
		{
			name: "ingressclasses", object: &networkingv1.IngressClass{}, list: &networkingv1.IngressClassList{}, traits: counted,
			columns: ingressClassColumns(),
		},
		{
			name: "networkpolicies", object: &networkingv1.NetworkPolicy{}, list: &networkingv1.NetworkPolicyList{}, traits: namespaced | counted,
			short: "netpol", columns: policyColumns(),
		},
		{name: "ipaddresses", object: &networkingv1.IPAddress{}, list: &networkingv1.IPAddressList{}, short: "ip", columns: addressColumns()},
		{
			name: "servicecidrs", object: &networkingv1.ServiceCIDR{}, list: &networkingv1.ServiceCIDRList{}, traits: status,
			columns: rangeColumns(),
		},
	}
}

func storageRows() []resource {
	return []resource{
		{name: "storageclasses", object: &storagev1.StorageClass{}, list: &storagev1.StorageClassList{}, short: "sc", columns: classColumns()},
		{name: "csidrivers", object: &storagev1.CSIDriver{}, list: &storagev1.CSIDriverList{}, traits: cached | careful, columns: driverColumns()},
		{name: "csinodes", object: &storagev1.CSINode{}, list: &storagev1.CSINodeList{}, traits: cached | careful, columns: driversColumns()},
		{
			name: "csistoragecapacities", object: &storagev1.CSIStorageCapacity{}, list: &storagev1.CSIStorageCapacityList{},
			traits: namespaced | careful, columns: createdColumns(),
		},
		{
			name: "volumeattachments", object: &storagev1.VolumeAttachment{}, list: &storagev1.VolumeAttachmentList{}, traits: status | cached | careful,
			columns: attachmentColumns(),
		},
		{
			name: "volumeattributesclasses", object: &storagev1.VolumeAttributesClass{}, list: &storagev1.VolumeAttributesClassList{}, short: "vac",
			columns: attributesColumns(),
		},
	}
}

func admissionRows() []resource {
	return []resource{
		{
			name: "mutatingwebhookconfigurations", object: &admissionv1.MutatingWebhookConfiguration{}, list: &admissionv1.MutatingWebhookConfigurationList{},
			traits: extension | counted | careful, columns: webhookColumns(),
		},
		{
			name: "validatingwebhookconfigurations", object: &admissionv1.ValidatingWebhookConfiguration{},
			list: &admissionv1.ValidatingWebhookConfigurationList{}, traits: extension | counted | careful, columns: webhookColumns(),
		},
		{
			name: "validatingadmissionpolicies", object: &admissionv1.ValidatingAdmissionPolicy{}, list: &admissionv1.ValidatingAdmissionPolicyList{},
			traits: extension | status | counted | careful, columns: admissionPolicyColumns("Validations"),
		},
		{
			name: "validatingadmissionpolicybindings", object: &admissionv1.ValidatingAdmissionPolicyBinding{},
			list: &admissionv1.ValidatingAdmissionPolicyBindingList{}, traits: extension | counted | careful, columns: policyBindingColumns(),
		},
		{
			name: "mutatingadmissionpolicies", object: &admissionv1.MutatingAdmissionPolicy{}, list: &admissionv1.MutatingAdmissionPolicyList{},
			traits: extension | counted | careful, columns: admissionPolicyColumns("Mutations"),
		},
		{
			name: "mutatingadmissionpolicybindings", object: &admissionv1.MutatingAdmissionPolicyBinding{},
			list: &admissionv1.MutatingAdmissionPolicyBindingList{}, traits: extension | counted | careful, columns: policyBindingColumns(),
		},
	}
}
