package registry

import (
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// attributes are what selectors look at.
func (r *resource) attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	m := metaOf(o)
	set := fields.Set{"metadata.name": m.GetName()}
	if r.is(namespaced) {
		set["metadata.namespace"] = m.GetNamespace()
	}
	if r.fields != nil {
		maps.Copy(set, r.fields(o))
	}
	return m.GetLabels(), set, nil
}

// triggers are by which field watchers of a cached resource are told apart, so that one that looks at a single value is
// not woken for every other.
func (r *resource) triggers() storage.IndexerFuncs {
	if r.index == "" {
		return nil
	}
	return storage.IndexerFuncs{r.index: func(o runtime.Object) string {
		_, set, err := r.attributes(o)
		if err != nil {
			return ""
		}
		return set[r.index]
	}}
}

// addSelectors registers by which fields clients may select a resource's objects. Others are refused.
func addSelectors(s *runtime.Scheme, gvk schema.GroupVersionKind, r *resource) error {
	_, known, err := r.attributes(r.new())
	if err != nil {
		return err
	}
	if r.fields == nil {
		return nil // the library's own is for name and namespace
	}
	return s.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		if r.name == "pods" && label == "spec.host" {
			return "spec.nodeName", value, nil // its name in the first versions
		}
		if _, ok := known[label]; !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return label, value, nil
	})
}

func podFields(o runtime.Object) fields.Set {
	p := o.(*corev1.Pod)
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy), "spec.schedulerName": p.Spec.SchedulerName,
		"spec.serviceAccountName": p.Spec.ServiceAccountName, "spec.hostNetwork": strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase": string(p.Status.Phase), "status.podIP": ip, "status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

func eventFields(o runtime.Object) fields.Set {
	e := o.(*corev1.Event)
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	about := e.InvolvedObject
	set := fields.Set{"reason": e.Reason, "reportingComponent": e.ReportingController, "source": source, "type": e.Type}
	// The two groups call it by two names.
	for _, name := range []string{"involvedObject.", "regarding."} {
		set[name+"kind"], set[name+"namespace"], set[name+"name"] = about.Kind, about.Namespace, about.Name
		set[name+"uid"], set[name+"apiVersion"] = string(about.UID), about.APIVersion
		set[name+"resourceVersion"], set[name+"fieldPath"] = about.ResourceVersion, about.FieldPath
	}
	set["reportingController"] = e.ReportingController
	return set
}

func nodeFields(o runtime.Object) fields.Set {
	return fields.Set{"spec.unschedulable": strconv.FormatBool(o.(*corev1.Node).Spec.Unschedulable)}
}

func namespaceFields(o runtime.Object) fields.Set {
	return fields.Set{"status.phase": string(o.(*corev1.Namespace).Status.Phase), "name": o.(*corev1.Namespace).Name}
}

func secretFields(o runtime.Object) fields.Set {
	return fields.Set{"type": string(o.(*corev1.Secret).Type)}
}

func serviceFields(o runtime.Object) fields.Set {
	s := o.(*corev1.Service)
	return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
}

func controllerFields(o runtime.Object) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(o.(*corev1.ReplicationController).Status.Replicas))}
}

func replicaSetFields(o runtime.Object) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(o.(*appsv1.ReplicaSet).Status.Replicas))}
}

func jobFields(o runtime.Object) fields.Set {
	return fields.Set{"status.successful": strconv.Itoa(int(o.(*batchv1.Job).Status.Succeeded))}
}

func requestFields(o runtime.Object) fields.Set {
	return fields.Set{"spec.signerName": o.(*certificatesv1.CertificateSigningRequest).Spec.SignerName}
}

func bundleFields(o runtime.Object) fields.Set {
	return fields.Set{"spec.signerName": o.(*certificatesv1.ClusterTrustBundle).Spec.SignerName}
}

func podRequestFields(o runtime.Object) fields.Set {
	s := &o.(*certificatesv1.PodCertificateRequest).Spec
	return fields.Set{"spec.signerName": s.SignerName, "spec.podName": s.PodName, "spec.nodeName": string(s.NodeName)}
}

func sliceFields(o runtime.Object) fields.Set {
	s := o.(*resourcev1.ResourceSlice)
	node := ""
	if s.Spec.NodeName != nil {
		node = *s.Spec.NodeName
	}
	return fields.Set{"spec.nodeName": node, "spec.driver": s.Spec.Driver}
}
