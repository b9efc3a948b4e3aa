package certificates

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-node/berth/control/controller"
)

type servingApprover struct {
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
	reserved func(context.Context) (Reserved, error)
}

// Reserved are names and addresses that a node must not have certificates for, though it says that they are its own.
type Reserved struct {
	// Never are those of the API that are no machine's, and Ranges have the addresses of services.
	Never  []string
	Ranges []netip.Prefix
	// Servers are those of the machines with API servers. They are their nodes', too: of the node Host, which is this
	// machine, and of those with the role of the control plane, which no node can give itself.
	Servers []string
	Host    string
}

// of are those that are not the node's.
func (r Reserved) of(node *corev1.Node) []string {
	_, control := node.Labels[controlLabel]
	if control || canonical(node.Name) == canonical(r.Host) {
		return r.Never
	}
	return slices.Concat(r.Never, r.Servers)
}

const controlLabel = "node-role.kubernetes.io/control-plane"

// NewServingApprover makes the controller that approves what a kubelet serves with, if it is for the addresses that its
// Node object has and no other node. A node writes its addresses itself, and whoever has taken one over could be taken
// for somebody else: what is reserved is nobody's.
func NewServingApprover(client kubernetes.Interface, requests certificatesinformers.CertificateSigningRequestInformer, nodes coreinformers.NodeInformer, reserved func(context.Context) (Reserved, error), log *slog.Logger) controller.Controller {
	a := &servingApprover{client, requests.Lister(), nodes.Lister(), reserved}
	loop := controller.NewLoop(log, workers, a.sync).Of(senderOf(requests.Lister())).Watch(requests.Informer(), controller.Name)
	return loop.Watch(nodes.Informer(), a.waiting)
}

// waiting are the requests of a node that has changed: it may have the address now that one of them is for.
func (a *servingApprover) waiting(o any) []string {
	node, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	all, err := a.requests.List(labels.Everything())
	if err != nil {
		return nil
	}
	var names []string
	for _, r := range all {
		if r.Spec.Username == nodePrefix+node.Name && undecided(r) {
			names = append(names, r.Name)
		}
	}
	return names
}

func (a *servingApprover) sync(ctx context.Context, name string) (time.Duration, error) {
	o, err := a.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find request %s: %w", name, err)
	}
	if !undecided(o) || o.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		return 0, nil
	}
	r, err := parse(o)
	if err != nil || checkNodeServing(r, o.Spec.Usages) != nil {
		return 0, nil // it is nothing that we approve; an administrator may
	}
	if o.Spec.Username != r.Subject.CommonName || !slices.Contains(o.Spec.Groups, nodeGroup) {
		return 0, nil
	}
	nodes, err := a.nodes.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	hosts := r.DNSNames
	for _, ip := range r.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	reserved, err := a.reserved(ctx)
	if err != nil {
		return 0, fmt.Errorf("find addresses of API servers: %w", err)
	}
	if !ownHosts(nodeOf(o.Spec.Username), hosts, nodes, reserved) {
		return 0, nil // the next change of the node is looked at
	}
	return 0, approve(ctx, a.client, o, "It is for addresses of this node alone")
}

// ownHosts says whether names and addresses are those of a node, and of nobody else.
func ownHosts(node string, hosts []string, nodes []*corev1.Node, reserved Reserved) bool {
	own, others := map[string]bool{}, map[string]bool{}
	for _, n := range nodes {
		set := others
		if n.Name == node {
			set = own
			for _, r := range reserved.of(n) {
				others[canonical(r)] = true
			}
		} else {
			set[canonical(n.Name)] = true
		}
		for _, address := range n.Status.Addresses {
			set[canonical(address.Address)] = true
		}
	}
	return !slices.ContainsFunc(hosts, func(h string) bool {
		h = canonical(h)
		return !own[h] || others[h] || !ofMachine(h) || slices.ContainsFunc(reserved.Ranges, func(p netip.Prefix) bool {
			a, err := netip.ParseAddr(h)
			return err == nil && p.Contains(a)
		})
	})
}

// ofMachine says whether an address or a name can be that of one machine: what a node says of itself is signed by the
// authority that the API server and others are known by. A name with a star is of all that fit, and those below svc are
// of services, which any namespace may have.
func ofMachine(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Zone() == "" && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast()
	}
	return len(validation.IsDNS1123Subdomain(host)) == 0 && !slices.Contains(strings.Split(host, "."), "svc")
}

// canonical is one text for each address, and for each name: letters of either case are the same to who verifies it.
func canonical(host string) string {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String()
	}
	return strings.ToLower(host)
}
