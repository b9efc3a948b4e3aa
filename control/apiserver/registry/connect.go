package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NodeDialer reaches the kubelets and what runs on nodes.
type NodeDialer interface {
	// Kubelet is how a kubelet is spoken to: by its own certificates, with ours.
	Kubelet() http.RoundTripper
	// Workload is how pods and services are spoken to, which have certificates of anybody.
	Workload() http.RoundTripper
}

// defaultKubeletPort is that of a kubelet which does not say its own.
const defaultKubeletPort = 10250

// connections are the subresources that lead to somebody else.
func connections(pods, services, endpointSlices, nodes *REST, dial NodeDialer) map[string]rest.Storage {
	to := &targets{pods, services, endpointSlices, nodes, dial}
	every := []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	stream := []string{"GET", "POST"}
	return map[string]rest.Storage{
		"pods/log":         &logREST{to},
		"pods/exec":        connect(&corev1.PodExecOptions{}, stream, to.exec),
		"pods/attach":      connect(&corev1.PodAttachOptions{}, stream, to.attach),
		"pods/portforward": connect(&corev1.PodPortForwardOptions{}, stream, to.portForward),
		"pods/proxy":       connectPath(&corev1.PodProxyOptions{}, every, to.podProxy),
		"services/proxy":   connectPath(&corev1.ServiceProxyOptions{}, every, to.serviceProxy),
		"nodes/proxy":      connectPath(&corev1.NodeProxyOptions{}, every, to.nodeProxy),
	}
}

// target is where a connection goes.
type target struct {
	url       *url.URL
	transport http.RoundTripper
	upgrade   bool // only a connection that is upgraded is any use
	redirect  bool // rewrite what the answer says of its own place
}

// connectREST implements [rest.Connecter].
type connectREST struct {
	options runtime.Object
	methods []string
	subpath bool
	find    func(ctx context.Context, name string, options runtime.Object) (target, error)
}

func connect[O runtime.Object](options O, methods []string, find func(context.Context, string, O) (target, error)) *connectREST {
	return &connectREST{options, methods, false, func(ctx context.Context, name string, o runtime.Object) (target, error) {
		typed, ok := o.(O)
		if !ok {
			return target{}, apierrors.NewBadRequest(fmt.Sprintf("not a %T: %T", options, o))
		}
		return find(ctx, name, typed)
	}}
}

func connectPath[O runtime.Object](options O, methods []string, find func(context.Context, string, O) (target, error)) *connectREST {
	c := connect(options, methods, find)
	c.subpath = true
	return c
}

// New implements [rest.Storage]. For admission's plugins and in discovery such a request is about its options.
func (c *connectREST) New() runtime.Object { return fresh(c.options) }

// Destroy implements [rest.Storage].
func (*connectREST) Destroy() {}

// ConnectMethods implements [rest.Connecter].
func (c *connectREST) ConnectMethods() []string { return c.methods }

// NewConnectOptions implements [rest.Connecter].
func (c *connectREST) NewConnectOptions() (runtime.Object, bool, string) {
	if c.subpath {
		return fresh(c.options), true, "path"
	}
	return fresh(c.options), false, ""
}

// Connect implements [rest.Connecter].
func (c *connectREST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	t, err := c.find(ctx, name, options)
	if err != nil {
		return nil, err
	}
	handler := proxy.NewUpgradeAwareHandler(t.url, t.transport, t.redirect, t.upgrade, proxy.NewErrorResponder(responder))
	// What a node answers goes on to the client as it is, but to another place it leads nobody.
	handler.RejectForwardingRedirects = true
	return handler, nil
}

// targets finds where connections go.
type targets struct {
	pods, services, slices, nodes *REST
	dial                          NodeDialer
}

func (t *targets) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	o, err := t.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Pod), nil
}

// kubelet is the address of a node's kubelet.
func (t *targets) kubelet(ctx context.Context, name string) (*url.URL, error) {
	o, err := t.nodes.Get(cluster(ctx), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return KubeletURL(o.(*corev1.Node))
}

// KubeletURL is where the kubelet of a node is.
func KubeletURL(n *corev1.Node) (*url.URL, error) {
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = defaultKubeletPort
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalIP, corev1.NodeExternalDNS} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && a.Address != "" {
				return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(int(port)))}, nil
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable("node " + n.Name + " has no address")
}

// container is the URL of something of a container at its kubelet.
func (t *targets) container(ctx context.Context, verb, name, container string, query url.Values) (target, error) {
	p, err := t.pod(ctx, name)
	if err != nil {
		return target{}, err
	}
	if container, err = containerOf(p, container); err != nil {
		return target{}, err
	}
	u, err := t.atNode(ctx, p)
	if err != nil {
		return target{}, err
	}
	u.Path = fmt.Sprintf("/%s/%s/%s/%s", verb, p.Namespace, p.Name, container)
	u.RawQuery = query.Encode()
	return target{url: u, transport: t.dial.Kubelet(), upgrade: true}, nil
}

func (t *targets) atNode(ctx context.Context, p *corev1.Pod) (*url.URL, error) {
	if p.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", p.Name))
	}
	return t.kubelet(ctx, p.Spec.NodeName)
}

// containerOf is the container that is meant: the named one, or the only or default one.
func containerOf(p *corev1.Pod, name string) (string, error) {
	var all, inits []string
	for _, c := range p.Spec.Containers {
		all = append(all, c.Name)
	}
	for _, c := range p.Spec.InitContainers {
		inits = append(inits, c.Name)
	}
	known := slices.Concat(all, inits)
	for _, c := range p.Spec.EphemeralContainers {
		known = append(known, c.Name)
	}
	switch {
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "" && len(inits) > 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s] or one of the init containers: [%s]",
			p.Name, strings.Join(all, " "), strings.Join(inits, " ")))
	case name == "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", p.Name, strings.Join(all, " ")))
	case !slices.Contains(known, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	return name, nil
}

// streams are the flags of exec and attach at a kubelet.
func streams(stdin, stdout, stderr, tty bool) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"input": stdin, "output": stdout, "error": stderr, "tty": tty} {
		if on {
			q.Set(name, "1")
		}
	}
	return q
}

func (t *targets) exec(ctx context.Context, name string, o *corev1.PodExecOptions) (target, error) {
	q := streams(o.Stdin, o.Stdout, o.Stderr, o.TTY)
	for _, c := range o.Command {
		q.Add("command", c)
	}
	return t.container(ctx, "exec", name, o.Container, q)
}

func (t *targets) attach(ctx context.Context, name string, o *corev1.PodAttachOptions) (target, error) {
	return t.container(ctx, "attach", name, o.Container, streams(o.Stdin, o.Stdout, o.Stderr, o.TTY))
}

func (t *targets) portForward(ctx context.Context, name string, o *corev1.PodPortForwardOptions) (target, error) {
	p, err := t.pod(ctx, name)
	if err != nil {
		return target{}, err
	}
	u, err := t.atNode(ctx, p)
	if err != nil {
		return target{}, err
	}
	u.Path = fmt.Sprintf("/portForward/%s/%s", p.Namespace, p.Name)
	q := url.Values{}
	for _, port := range o.Ports {
		q.Add("port", strconv.Itoa(int(port)))
	}
	u.RawQuery = q.Encode()
	return target{url: u, transport: t.dial.Kubelet(), upgrade: true}, nil
}

// outside refuses addresses by which a client of the API would reach this machine and its network's services.
func outside(host string) error {
	if ip := net.ParseIP(host); ip != nil && (ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsUnspecified()) {
		return apierrors.NewBadRequest("address not allowed: " + host)
	}
	return nil
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

func proxyPath(path string) string { return "/" + strings.TrimPrefix(path, "/") }

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

// logREST streams what a container has written.
type logREST struct{ to *targets }

// New implements [rest.Storage].
func (*logREST) New() runtime.Object { return &corev1.Pod{} }

// Destroy implements [rest.Storage].
func (*logREST) Destroy() {}

// ProducesMIMETypes implements [rest.StorageMetadata].
func (*logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject implements [rest.StorageMetadata].
func (*logREST) ProducesObject(string) any { return "" }

// NewGetOptions implements [rest.GetterWithOptions].
func (*logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// OverrideMetricsVerb implements [rest.MetricsVerbOverrider]: a log is connected to, whatever the method.
func (*logREST) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get implements [rest.GetterWithOptions].
func (l *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not PodLogOptions: %T", options))
	}
	if p, err := l.to.pod(ctx, name); err == nil && p.Spec.NodeName == "" {
		return &genericrest.LocationStreamer{ContentType: "text/plain"}, nil // it has written nothing yet
	}
	t, err := l.to.container(ctx, "containerLogs", name, o.Container, logQuery(o))
	if err != nil {
		return nil, err
	}
	transport := t.transport
	return &genericrest.LocationStreamer{
		Location: t.url, Transport: transport, ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker:             genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), name),
		RedirectChecker:             genericrest.PreventRedirects,
		TLSVerificationErrorCounter: nil,
	}, nil
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	if o.SinceSeconds != nil {
		q.Set("sinceSeconds", strconv.FormatInt(*o.SinceSeconds, 10))
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.TailLines != nil {
		q.Set("tailLines", strconv.FormatInt(*o.TailLines, 10))
	}
	if o.LimitBytes != nil {
		q.Set("limitBytes", strconv.FormatInt(*o.LimitBytes, 10))
	}
	if o.Stream != nil && *o.Stream != corev1.LogStreamAll {
		q.Set("stream", *o.Stream)
	}
	return q
}
