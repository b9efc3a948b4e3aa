package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The ports of nodes that services may have.
const (
	firstPort, lastPort = 30000, 32767
	// portPrefix is where the store has who has a port: a key each, made by one of all that want it.
	portPrefix = "/registry/nodeports/"
)

var (
	errPortTaken = errors.New("provided port is already allocated")
	errPortRange = fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", firstPort, lastPort)
)

// ports gives services ports of the nodes.
type ports struct{ client *clientv3.Client }

func portKey(port int32) string { return path.Join(portPrefix, strconv.Itoa(int(port))) }

// take takes a port for an owner.
func (p *ports) take(ctx context.Context, owner string, port int32, dry bool) error {
	if port < firstPort || port > lastPort {
		return errPortRange
	}
	key := portKey(port)
	if dry {
		got, err := p.client.Get(ctx, key, clientv3.WithCountOnly())
		if err == nil && got.Count > 0 {
			err = errPortTaken
		}
		return err
	}
	answer, err := p.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, owner)).Commit()
	if err != nil {
		return fmt.Errorf("take port %d: %w", port, err)
	}
	if !answer.Succeeded {
		return errPortTaken
	}
	return nil
}

// free gives back a port that an owner had. Another may have it since.
func (p *ports) free(ctx context.Context, owner string, port int32) error {
	key := portKey(port)
	_, err := p.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", owner)).Then(clientv3.OpDelete(key)).Commit()
	return err
}

// held has the owner of each port that is taken.
func (p *ports) held(ctx context.Context) (map[int32]string, error) {
	got, err := p.client.Get(ctx, portPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list node ports: %w", err)
	}
	all := map[int32]string{}
	for _, kv := range got.Kvs {
		if n, err := strconv.ParseInt(path.Base(string(kv.Key)), 10, 32); err == nil {
			all[int32(n)] = string(kv.Value)
		}
	}
	return all, nil
}

// draw takes ports for one service.
type draw struct {
	from   *ports
	owner  string
	dry    bool
	taken  *undo
	listed bool
	free   []int32 // where it is known which are free, in no order
}

// take takes a port, and notes that it is taken.
func (d *draw) take(ctx context.Context, port int32) error {
	err := d.from.take(ctx, d.owner, port, d.dry)
	if err == nil && !d.dry {
		*d.taken = append(*d.taken, func(ctx context.Context) error { return d.from.free(ctx, d.owner, port) })
	}
	return err
}

// expect has n ports be drawn from those that are free, or none of them: a service may ask for a thousand, and who is
// refused in the end has had them for that time.
func (d *draw) expect(ctx context.Context, n int) error {
	if n < 2 {
		return nil
	}
	if err := d.list(ctx); err != nil {
		return err
	}
	if len(d.free) < n {
		return errFull
	}
	return nil
}

func (d *draw) list(ctx context.Context) error {
	held, err := d.from.held(ctx)
	if err != nil {
		return err
	}
	d.listed = true
	for port := int32(firstPort); port <= lastPort; port++ {
		if _, is := held[port]; !is {
			d.free = append(d.free, port)
		}
	}
	rand.Shuffle(len(d.free), func(i, j int) { d.free[i], d.free[j] = d.free[j], d.free[i] })
	return nil
}

// next takes any free port. Which are free is asked once, where the first that comes is not.
func (d *draw) next(ctx context.Context) (int32, error) {
	if !d.listed {
		port := firstPort + rand.Int32N(lastPort-firstPort+1)
		if err := d.take(ctx, port); !errors.Is(err, errPortTaken) {
			return port, err
		}
		if err := d.list(ctx); err != nil {
			return 0, err
		}
	}
	for len(d.free) > 0 {
		port := d.free[0]
		d.free = d.free[1:]
		if err := d.take(ctx, port); !errors.Is(err, errPortTaken) {
			return port, err
		}
	}
	return 0, errFull
}

// nodePorts gives a service the ports that its type has, those that it asks for before any others.
func (s *services) nodePorts(ctx context.Context, svc, old *corev1.Service, dry bool, taken *undo) error {
	d := &draw{from: s.ports, owner: ownerOf(svc), dry: dry, taken: taken}
	var has []int32
	health := int32(0)
	if old != nil {
		has = nodePortsOf(old)
		if needsHealthPort(old) {
			health = old.Spec.HealthCheckNodePort
		}
	}
	var none []*corev1.ServicePort // which are to have a port and have none
	without := svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.AllocateLoadBalancerNodePorts != nil && !*svc.Spec.AllocateLoadBalancerNodePorts
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		switch {
		case !hasNodePorts(svc) || p.NodePort != 0 && slices.Contains(has, p.NodePort):
		case p.NodePort != 0:
			if err := d.take(ctx, p.NodePort); err != nil {
				return notGiven(svc, field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err)
			}
			has = append(has, p.NodePort) // another protocol may have the same
		case !without:
			none = append(none, p)
		}
	}
	asks := needsHealthPort(svc) && svc.Spec.HealthCheckNodePort == 0
	if p := svc.Spec.HealthCheckNodePort; needsHealthPort(svc) && p != 0 && p != health {
		if err := d.take(ctx, p); err != nil {
			return notGiven(svc, field.NewPath("spec", "healthCheckNodePort"), p, err)
		}
	}
	if err := d.ports(ctx, svc, none, asks); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
	}
	if !asks {
		return nil
	}
	p, err := d.next(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %d: %w", p, err))
	}
	svc.Spec.HealthCheckNodePort = p
	return nil
}

// ports gives each its port, where there is one for each and one more. What is offered by several protocols at one
// port, as DNS is, is at one port of the nodes, too.
func (d *draw) ports(ctx context.Context, svc *corev1.Service, all []*corev1.ServicePort, more bool) error {
	numbers := map[int32]bool{}
	for _, p := range all {
		if share(svc, p); p.NodePort == 0 {
			numbers[p.Port] = true
		}
	}
	n := len(numbers)
	if n > 0 && more {
		n++
	}
	if err := d.expect(ctx, n); err != nil {
		return err
	}
	for _, p := range all {
		if share(svc, p); p.NodePort != 0 {
			continue
		}
		var err error
		if p.NodePort, err = d.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

// share gives a port the port of the nodes that another protocol has of the same, if its own protocol does not have it.
func share(svc *corev1.Service, p *corev1.ServicePort) {
	for i := range svc.Spec.Ports {
		o := &svc.Spec.Ports[i]
		if p.NodePort != 0 || o.NodePort == 0 || o.Port != p.Port || o.Protocol == p.Protocol {
			continue
		}
		if !slices.ContainsFunc(svc.Spec.Ports, func(x corev1.ServicePort) bool { return x.NodePort == o.NodePort && x.Protocol == p.Protocol }) {
			p.NodePort = o.NodePort
		}
	}
}

// notGiven is why a service does not have the port that it asks for.
func notGiven(svc *corev1.Service, path *field.Path, port int32, err error) error {
	if errors.Is(err, errPortTaken) || errors.Is(err, errPortRange) {
		return invalid(svc, path, port, err)
	}
	return apierrors.NewInternalError(err)
}
