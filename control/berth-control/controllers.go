package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-node/berth/control/apiserver"
	"github.com/berth-node/berth/control/controller/certificates"
	"github.com/berth-node/berth/control/controller/manager"
	"github.com/berth-node/berth/control/controller/nodeipam"
	"github.com/berth-node/berth/control/controller/nodelifecycle"
	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/control/pki"
)

// shortestLife of a certificate leaves time to ask for the next.
const shortestLife = time.Minute

// controllersTimeout bounds how long the server waits for controllers before it stops itself.
const controllersTimeout = 5 * time.Second

// controllerFlags say which controllers run, and what they are told, by the names that Kubernetes' controller manager
// has for it.
type controllerFlags struct {
	list []string
	life time.Duration // of certificates
}

func (c *controllerFlags) add(p *pflag.FlagSet) {
	p.DurationVar(&c.life, "cluster-signing-duration", certificates.Longest, "how long certificates of nodes and others are good that are signed on request, unless a shorter time is asked for")
	p.StringSliceVar(&c.list, "controllers", []string{"*"}, "controllers that run, as with Kubernetes: * are all that do by default, NAME and -NAME one that does or does not; "+
		"none, if empty. All: "+strings.Join(manager.Names(), ", ")+". Not by default: "+strings.Join(manager.OffByDefault(), ", "))
}

func (c *controllerFlags) check() error {
	if c.life < shortestLife {
		return fmt.Errorf("--cluster-signing-duration is %s: nobody can renew a certificate in less than %s", c.life, shortestLife)
	}
	return manager.Check(c.list)
}

// podFlags are the ranges of the addresses of pods.
type podFlags struct {
	cidr   string
	v4, v6 int
}

func (p *podFlags) add(f *pflag.FlagSet) {
	f.StringVar(&p.cidr, "cluster-cidr", "", "range of the addresses of pods, of which each node is given a part; two of both families, with a comma between; none, if empty")
	f.IntVar(&p.v4, "node-cidr-mask-size-ipv4", 24, "length of the prefix of a node's part of the range of IPv4")
	f.IntVar(&p.v6, "node-cidr-mask-size-ipv6", 64, "length of the prefix of a node's part of the range of IPv6")
}

func (p *podFlags) ranges() ([]nodeipam.Range, error) {
	if p.cidr == "" {
		return nil, nil
	}
	return nodeipam.ParseRanges(p.cidr, p.v4, p.v6)
}

// nodeFlags say when nodes are lost, by the names that Kubernetes' controller manager has for it.
type nodeFlags struct{ rules nodelifecycle.Rules }

func (n *nodeFlags) add(f *pflag.FlagSet) {
	r := nodelifecycle.Defaults()
	f.DurationVar(&n.rules.Grace, "node-monitor-grace-period", r.Grace, "how long a node may be silent until it is taken for lost: several times as long as it takes to renew its lease")
	f.DurationVar(&n.rules.StartGrace, "node-startup-grace-period", r.StartGrace, "how long a node may be silent that has never said how it is")
	f.Float64Var(&n.rules.Rate, "node-eviction-rate", r.Rate, "lost nodes of a zone whose pods are evicted, one after the other, each second")
	f.Float64Var(&n.rules.SlowRate, "secondary-node-eviction-rate", r.SlowRate, "the same of a zone that is cut off, if it is large; of one that is not, none are")
	f.Float64Var(&n.rules.Disrupted, "unhealthy-zone-threshold", r.Disrupted, "part of a zone's nodes that are lost, three at least, where the zone is cut off")
	f.IntVar(&n.rules.LargeZone, "large-cluster-size-threshold", r.LargeZone, "nodes that a zone has more than where it is large")
}

// newControllers makes the controllers. Where there may be other members, one is elected to have them run.
func newControllers(server *apiserver.Server, o apiserver.Options, f *serveFlags) (*manager.Manager, error) {
	host, _ := os.Hostname() // for who reads the lease
	inside := server.Inside()
	port := o.Listener.Addr().(*net.TCPAddr).Port
	pods, err := f.pods.ranges()
	if err != nil {
		return nil, err
	}
	m, err := manager.New(manager.Options{
		Config: inside.Config, Informers: inside.Informers, List: f.controllers.list,
		Elect: f.member.Address != "" || len(f.etcd.Endpoints) > 0, Identity: host + "_" + string(uuid.NewUUID()),
		Server:   "https://" + net.JoinHostPort(reach(f.bind, o.Advertise), strconv.Itoa(port)),
		Reserved: func(ctx context.Context) (certificates.Reserved, error) { return reserved(ctx, f, o) },
		Authority: func() (*x509.Certificate, crypto.Signer, error) {
			return o.PKI.Authority(pki.ClusterAuthority)
		},
		Life:   f.controllers.life,
		Bundle: inside.ClusterCA, SecretToken: inside.SecretToken, PodRanges: pods, ServiceRanges: o.ServiceRanges,
		Nodes: f.nodes.rules, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	inside.ClusterCA.AddListener(m)
	return m, nil
}

// reservedTimeout bounds the questions to etcd who else serves.
const reservedTimeout = 10 * time.Second

// reserved are names and addresses of the API that a node must not serve by: those that are no machine's, and those of
// the machines of all members, be they up or down.
func reserved(ctx context.Context, f *serveFlags, o apiserver.Options) (certificates.Reserved, error) {
	ctx, cancel := context.WithTimeout(ctx, reservedTimeout)
	defer cancel()
	host, _ := os.Hostname() // where there is none no node has its name
	r := certificates.Reserved{Ranges: o.ServiceRanges, Host: host}
	for _, a := range []string{host, o.Advertise.String(), local(f.bind), f.member.Address} {
		if a != "" {
			r.Servers = append(r.Servers, a)
		}
	}
	own := r.Servers
	r.Never = slices.DeleteFunc(hosts(f, o.Advertise, o.ServiceRanges), func(h string) bool { return slices.Contains(own, h) })
	living, err := apiserver.Living(ctx, o.Etcd)
	if err != nil {
		return r, err
	}
	for _, at := range living {
		if server, err := netip.ParseAddrPort(at); err == nil {
			r.Servers = append(r.Servers, server.Addr().String())
		}
	}
	members, err := etcd.Hosts(ctx, o.Etcd)
	r.Servers = append(r.Servers, members...)
	return r, err
}

// runner is controllers, or a scheduler.
type runner interface {
	Run(ctx context.Context) error
}

// runControllers has controllers and the scheduler run from when the server answers until ctx ends and they have
// stopped, or take too long.
func runControllers(ctx context.Context, all []runner, server *apiserver.Server, log *slog.Logger) error {
	select {
	case <-ctx.Done():
		return nil
	case <-server.Began():
	}
	ended := make(chan error, 1)
	go func() {
		var group errgroup.Group
		for _, r := range all {
			group.Go(func() error { return r.Run(ctx) })
		}
		ended <- group.Wait()
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(controllersTimeout):
		log.Warn("controllers have not stopped in time")
		return nil
	}
}
