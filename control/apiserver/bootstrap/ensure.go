// Package bootstrap makes the objects that every cluster begins with, and keeps them as Kubernetes has them: namespaces
// of the system, the default roles of RBAC and their bindings, priority classes, flow schemas and priority levels, and
// what extension API servers learn about authentication.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// Options are what differs between clusters.
type Options struct {
	// ClientCA is the bundle, in PEM, that certificates of clients are verified with. Extension API servers read it.
	ClientCA []byte
	// RequestHeaderCA is the bundle, in PEM, that the certificate of a front proxy is verified with. It may be empty.
	RequestHeaderCA []byte
	// RequestHeaderNames are the common names that certificate may have. Any, if there are none.
	RequestHeaderNames []string
	// Retired are certificates, in PEM, that are trusted no more. Where they were published they are taken back.
	Retired []byte
	// Same says that roles, their bindings, priority levels and flow schemas are as they were left. They are not looked
	// at.
	Same bool
	// Log is told of default roles that are left as they are. It may be nil.
	Log *slog.Logger
}

// fieldManager is who has written these objects, by their managed fields.
const fieldManager = "berth-control-bootstrap"

// Ensure makes what is missing and puts right what the cluster's defaults are, but where an annotation asks to be left
// alone (rbac.authorization.kubernetes.io/autoupdate, apf.kubernetes.io/autoupdate-spec). It is idempotent, tries all,
// and returns what failed, the first before all others. Server and deadline are those of the client and the context.
func Ensure(ctx context.Context, client kubernetes.Interface, o Options) error {
	var all []error
	for _, step := range []struct {
		name   string
		costly bool
		do     func(context.Context, kubernetes.Interface) error
	}{
		{"namespaces", false, ensureNamespaces}, // before what is in them
		{"priority levels and flow schemas", true, ensureFlowControl},
		{"roles", true, o.ensureRoles},
		{"priority classes", false, ensurePriorityClasses},
		{"authentication of extension API servers", false, o.EnsureTrust},
	} {
		if o.Same && step.costly {
			continue
		}
		if err := step.do(ctx, client); err != nil {
			all = append(all, fmt.Errorf("ensure %s: %w", step.name, err))
		}
	}
	return errors.Join(all...)
}

// systemNamespaces are there in every cluster.
func systemNamespaces() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault}
}

func ensureNamespaces(ctx context.Context, client kubernetes.Interface) error {
	var all []error
	for _, name := range systemNamespaces() {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err = client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{FieldManager: fieldManager})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			all = append(all, fmt.Errorf("make namespace %s: %w", name, err))
		}
	}
	return errors.Join(all...)
}

// SystemPriorityClasses are those that only pods of the system should have, above all that users may define.
func SystemPriorityClasses() []*schedulingv1.PriorityClass {
	class := func(name string, value int32, description string) *schedulingv1.PriorityClass {
		policy := corev1.PreemptLowerPriority
		return &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description, PreemptionPolicy: &policy,
		}
	}
	// The highest that a user may define is 1,000,000,000.
	return []*schedulingv1.PriorityClass{
		class("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
		class("system-cluster-critical", 2_000_000_000,
			"Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
	}
}

func ensurePriorityClasses(ctx context.Context, client kubernetes.Interface) error {
	var all []error
	for _, class := range SystemPriorityClasses() {
		_, err := client.SchedulingV1().PriorityClasses().Get(ctx, class.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{FieldManager: fieldManager})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			all = append(all, fmt.Errorf("make priority class %s: %w", class.Name, err))
		}
	}
	return errors.Join(all...)
}

// again does what another writer came between.
func again(do func() error) error {
	return retry.OnError(retry.DefaultRetry, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}, do)
}
