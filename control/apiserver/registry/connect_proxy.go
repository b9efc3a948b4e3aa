package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// outside refuses addresses by which a client of the API would reach this machine and its network's services. A name
// may lead there, too: Outside is asked when it is known where.
func outside(host string) error {
	if a, err := netip.ParseAddr(host); err == nil && !Outside(a) {
		return apierrors.NewBadRequest("address not allowed: " + host)
	}
	return nil
}

// Outside says whether pods and services may be reached by an address.
func Outside(a netip.Addr) bool {
	a = a.Unmap()
	return !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
}

func (t *targets) podProxy(ctx context.Context, id string, o *corev1.PodProxyOptions) (target, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	p, err := t.pod(ctx, name)
	if err != nil {
		return target{}, err
	}
	if port == "" {
		for _, c := range p.Spec.Containers {
			if port == "" && len(c.Ports) > 0 {
				port = strconv.Itoa(int(c.Ports[0].ContainerPort))
			}
		}
	}
	if len(p.Status.PodIPs) == 0 {
		return target{}, apierrors.NewServiceUnavailable("pod " + name + " has no address")
	}
	host := p.Status.PodIPs[0].IP
	if err := outside(host); err != nil {
		return target{}, err
	}
	return t.workload(scheme, host, port, o.Path), nil
}

func (t *targets) workload(scheme, host, port, path string) target {
	if scheme == "" {
		scheme = "http"
	}
	if port != "" {
		host = net.JoinHostPort(host, port)
	}
	return target{url: &url.URL{Scheme: scheme, Host: host, Path: proxyPath(path)}, transport: t.dial.Workload(), redirect: true}
}

// proxyPath is a path at the other end. Where the request has none, not even a slash, a browser that reads is sent to
// the one with a slash: what a page says of others beside it is meant below the proxy.
func proxyPath(path string) string {
	if path == "" {
		return ""
	}
	return "/" + strings.TrimPrefix(path, "/")
}

// serviceProxy goes to one of a service's ready endpoints, by chance.
func (t *targets) serviceProxy(ctx context.Context, id string, o *corev1.ServiceProxyOptions) (target, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	obj, err := t.services.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return target{}, err
	}
	svc := obj.(*corev1.Service)
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return port == "" && len(svc.Spec.Ports) == 1 || port != "" && (p.Name == port || strconv.Itoa(int(p.Port)) == port)
	})
	if i < 0 {
		return target{}, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, name))
	}
	hosts, err := t.endpoints(ctx, name, svc.Spec.Ports[i].Name)
	if err != nil {
		return target{}, err
	}
	if len(hosts) == 0 {
		return target{}, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
	}
	host, number, err := net.SplitHostPort(hosts[rand.IntN(len(hosts))])
	if err != nil {
		return target{}, apierrors.NewInternalError(err)
	}
	if err := outside(host); err != nil {
		return target{}, err
	}
	return t.workload(scheme, host, number, o.Path), nil
}

// endpoints are the addresses with the ports that are ready behind a port of a service.
func (t *targets) endpoints(ctx context.Context, service, port string) ([]string, error) {
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	o, err := t.slices.List(ctx, &internalversion.ListOptions{LabelSelector: of})
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, s := range o.(*discoveryv1.EndpointSliceList).Items {
		for _, p := range s.Ports {
			if p.Port == nil || deref(p.Name) != port {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					hosts = append(hosts, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	return hosts, nil
}

func (t *targets) nodeProxy(ctx context.Context, id string, o *corev1.NodeProxyOptions) (target, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	u, err := t.kubelet(ctx, name)
	if err != nil {
		return target{}, err
	}
	if port != "" && port != u.Port() {
		host := u.Hostname()
		if err := outside(host); err != nil {
			return target{}, err
		}
		return t.workload(scheme, host, port, o.Path), nil
	}
	u.Path = proxyPath(o.Path)
	return target{url: u, transport: t.dial.Kubelet(), redirect: true}, nil
}
