package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/utils/ptr"
)

// services gives services their addresses and ports in the write that makes or changes them: taken before it, given
// back when it fails. What a crash leaves taken [Repair] finds.
type services struct {
	ips      *addresses
	ports    *ports
	families []corev1.IPFamily // those that the cluster has, the default one first
	log      *slog.Logger
}

// undo gives back what was taken.
type undo []func(context.Context) error

func (u undo) run(ctx context.Context, log *slog.Logger) {
	for _, f := range slices.Backward(u) {
		if err := f(context.WithoutCancel(ctx)); err != nil {
			log.Warn("what a service was given is not given back; a repair will", "error", err)
		}
	}
}

func (s *services) install(r *REST) {
	r.BeginCreate = func(ctx context.Context, o runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return s.begin(ctx, o.(*corev1.Service), nil, dryrun.IsDryRun(options.DryRun))
	}
	r.BeginUpdate = func(ctx context.Context, o, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return s.begin(ctx, o.(*corev1.Service), old.(*corev1.Service), dryrun.IsDryRun(options.DryRun))
	}
	r.AfterDelete = func(o runtime.Object, options *metav1.DeleteOptions) {
		if dryrun.IsDryRun(options.DryRun) {
			return
		}
		svc := o.(*corev1.Service)
		var all undo
		s.giveBack(svc, addressesOf(svc), portsOf(svc), &all)
		all.run(context.Background(), s.log)
	}
}

// begin takes what the service is to have and has not, and returns what is done when the write has ended: one way or
// the other something is given back.
func (s *services) begin(ctx context.Context, svc, old *corev1.Service, dry bool) (genericregistry.FinishFunc, error) {
	if old != nil {
		keepAllocated(svc, old)
		dropOfType(svc, old)
		dropSecond(svc, old)
	}
	var taken, given undo
	err := s.addresses(ctx, svc, old, dry, &taken)
	if err == nil {
		err = s.nodePorts(ctx, svc, old, dry, &taken)
	}
	if err != nil {
		taken.run(ctx, s.log)
		return nil, err
	}
	if old != nil && !dry {
		now, nowPorts := addressesOf(svc), portsOf(svc)
		gone := slices.DeleteFunc(addressesOf(old), func(ip string) bool { return slices.Contains(now, ip) })
		free := slices.DeleteFunc(portsOf(old), func(p int32) bool { return slices.Contains(nowPorts, p) })
		s.giveBack(svc, gone, free, &given)
	}
	return func(ctx context.Context, written bool) {
		if written {
			given.run(ctx, s.log)
		} else {
			taken.run(ctx, s.log)
		}
	}, nil
}

func (s *services) giveBack(svc *corev1.Service, ips []string, numbers []int32, to *undo) {
	for _, ip := range ips {
		*to = append(*to, func(ctx context.Context) error { return s.ips.free(ctx, svc, ip) })
	}
	for _, p := range numbers {
		*to = append(*to, func(ctx context.Context) error { return s.ports.free(ctx, ownerOf(svc), p) })
	}
}

// ownerOf is as whose the store has the ports of a service.
func ownerOf(s *corev1.Service) string { return s.Namespace + "/" + s.Name }

// keepAllocated leaves a service what it has when a client that changes it does not say so: a manifest has no
// addresses.
func keepAllocated(svc, old *corev1.Service) {
	needs := func(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }
	if needs(svc) && needs(old) {
		if svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0 {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = old.Spec.ClusterIP, old.Spec.ClusterIPs
		}
		if len(svc.Spec.IPFamilies) == 0 {
			svc.Spec.IPFamilies = old.Spec.IPFamilies
		}
		if svc.Spec.IPFamilyPolicy == nil {
			svc.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
		}
	}
	if hasNodePorts(svc) && hasNodePorts(old) {
		for i := range svc.Spec.Ports {
			p := &svc.Spec.Ports[i]
			for _, was := range old.Spec.Ports {
				if p.NodePort == 0 && p.Port == was.Port && p.Protocol == was.Protocol {
					p.NodePort = was.NodePort
				}
			}
		}
	}
	if needsHealthPort(svc) && needsHealthPort(old) && svc.Spec.HealthCheckNodePort == 0 {
		svc.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// dropOfType takes from a service what its new type does not have, where a client that changes the type has left it as
// it was.
func dropOfType(svc, old *corev1.Service) {
	if svc.Spec.Type == corev1.ServiceTypeExternalName && old.Spec.Type != corev1.ServiceTypeExternalName &&
		slices.Equal(svc.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs, svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = "", nil, nil, nil
	}
	if !hasNodePorts(svc) && hasNodePorts(old) {
		for i := range svc.Spec.Ports {
			if slices.Contains(portsOf(old), svc.Spec.Ports[i].NodePort) {
				svc.Spec.Ports[i].NodePort = 0
			}
		}
	}
	if !needsHealthPort(svc) && svc.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		svc.Spec.HealthCheckNodePort = 0
	}
	if !fromOutside(svc) && fromOutside(old) && svc.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		svc.Spec.ExternalTrafficPolicy = ""
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer || old.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if ptr.Equal(svc.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
		svc.Spec.AllocateLoadBalancerNodePorts = nil
	}
	if ptr.Equal(svc.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		svc.Spec.LoadBalancerClass = nil
	}
}

// dropSecond takes the second address and family from a service that is to have one family from now on, where a client
// has left them as they were.
func dropSecond(svc, old *corev1.Service) {
	single := func(s *corev1.Service) bool {
		return s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	}
	if !single(svc) || single(old) {
		return
	}
	if ips := svc.Spec.ClusterIPs; len(ips) == 2 && slices.Equal(ips, old.Spec.ClusterIPs) {
		svc.Spec.ClusterIPs = ips[:1:1]
	}
	if families := svc.Spec.IPFamilies; len(families) == 2 && slices.Equal(families, old.Spec.IPFamilies) {
		svc.Spec.IPFamilies = families[:1:1]
	}
}

// fromOutside says whether others than pods may reach a service, for whom it has a policy.
func fromOutside(s *corev1.Service) bool {
	return hasNodePorts(s) || s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func needsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// addressesOf are those that a service has of the cluster's ranges, each written in the one way that names it. Clients
// may write them otherwise, and services have them so.
func addressesOf(s *corev1.Service) []string {
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	var all []string
	for _, text := range s.Spec.ClusterIPs {
		if ip, ok := parseIP(text); ok {
			all = append(all, ip.String())
		}
	}
	return all
}

// portsOf are those that a service has of the nodes, each once. What a service of another type says of them nobody has
// given it: anybody may write there what others have.
func portsOf(s *corev1.Service) []int32 {
	all := nodePortsOf(s)
	if p := s.Spec.HealthCheckNodePort; needsHealthPort(s) && p != 0 && !slices.Contains(all, p) {
		all = append(all, p)
	}
	return all
}

// nodePortsOf are those that clients reach a service by.
func nodePortsOf(s *corev1.Service) []int32 {
	if !hasNodePorts(s) {
		return nil
	}
	var all []int32
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			all = append(all, p.NodePort)
		}
	}
	// One number may be of two protocols.
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *services) addresses(ctx context.Context, svc, old *corev1.Service, dry bool, taken *undo) error {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if err := s.setFamilies(svc, old); err != nil {
		return err
	}
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		svc.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
		return nil
	}
	var has []string
	if old != nil {
		has = addressesOf(old)
	}
	for i, family := range svc.Spec.IPFamilies {
		if i == len(svc.Spec.ClusterIPs) {
			svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, "")
		}
		wanted := &svc.Spec.ClusterIPs[i]
		asked, ok := parseIP(*wanted)
		if *wanted != "" && (!ok || slices.Contains(has, asked.String())) {
			continue // it has it, or the rules say what is wrong with it
		}
		ip, err := s.address(ctx, svc, family, asked, dry)
		if err != nil {
			return err
		}
		if *wanted == "" {
			*wanted = ip.String()
		}
		if !dry {
			*taken = append(*taken, func(ctx context.Context) error { return s.ips.free(ctx, svc, ip.String()) })
		}
	}
	if len(svc.Spec.ClusterIPs) > 0 {
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	}
	return nil
}

// address takes the address that is wanted, or any where that is none.
func (s *services) address(ctx context.Context, svc *corev1.Service, family corev1.IPFamily, wanted netip.Addr, dry bool) (netip.Addr, error) {
	if !wanted.IsValid() {
		ip, err := s.ips.next(ctx, svc, family, dry)
		if err != nil {
			return ip, apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", err))
		}
		return ip, nil
	}
	err := s.ips.take(ctx, svc, wanted, dry)
	if err != nil {
		return wanted, invalid(svc, field.NewPath("spec", "clusterIPs"), svc.Spec.ClusterIPs, fmt.Errorf("failed to allocate IP %s: %w", wanted, err))
	}
	return wanted, nil
}

// setFamilies completes what a service says of families and of its addresses.
func (s *services) setFamilies(svc, old *corev1.Service) error {
	spec := &svc.Spec
	switch {
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		spec.ClusterIPs = []string{spec.ClusterIP}
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	headless := spec.ClusterIP == corev1.ClusterIPNone
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		switch {
		case headless && len(spec.Selector) == 0 && len(spec.IPFamilies) == 0:
			policy = corev1.IPFamilyPolicyRequireDualStack // whoever writes its endpoints may have both
		case len(spec.IPFamilies) == 2 || len(spec.ClusterIPs) == 2:
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	for i, text := range spec.ClusterIPs {
		if ip, ok := parseIP(text); ok && i == len(spec.IPFamilies) {
			spec.IPFamilies = append(spec.IPFamilies, familyOf(ip))
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{s.families[0]}
	}
	// Whoever writes its endpoints may have both.
	free := headless && len(spec.Selector) == 0
	for i, f := range spec.IPFamilies {
		is := f == corev1.IPv4Protocol || f == corev1.IPv6Protocol
		if is && !free && !slices.Contains(s.families, f) && (old == nil || !slices.Contains(old.Spec.IPFamilies, f)) {
			return invalid(svc, field.NewPath("spec", "ipFamilies").Index(i), f, errors.New("not configured on this cluster"))
		}
	}
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack || len(spec.IPFamilies) == 2 {
		return nil
	}
	other := corev1.IPv6Protocol
	if spec.IPFamilies[0] == other {
		other = corev1.IPv4Protocol
	}
	both := slices.Contains(s.families, other) || free
	switch {
	case both:
		spec.IPFamilies = append(spec.IPFamilies, other)
	case *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack:
		return invalid(svc, field.NewPath("spec", "ipFamilyPolicy"), *spec.IPFamilyPolicy,
			errors.New("this cluster is not configured for dual-stack services"))
	}
	return nil
}

func invalid(svc *corev1.Service, path *field.Path, value any, err error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), svc.Name, field.ErrorList{
		field.Invalid(path, value, err.Error()),
	})
}
