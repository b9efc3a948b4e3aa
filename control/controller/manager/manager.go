// Package manager is the controllers of a cluster in one process: which there are, as whom each acts, and that only one
// member of several has them run.
package manager

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/accounttoken"
	"github.com/berth-node/berth/control/controller/certificates"
	"github.com/berth-node/berth/control/controller/nodeipam"
	"github.com/berth-node/berth/control/controller/nodelifecycle"
)

// lease is what members of a control plane are elected by.
const lease = "berth-control"

// Options are what controllers are made of.
type Options struct {
	// Config is how the API is reached with all rights; each controller acts with its own only.
	Config *rest.Config
	// Informers are those of the API server, which knows much of a cluster anyway. They run as long as it does.
	Informers informers.SharedInformerFactory
	// List says which run, by --controllers.
	List []string
	// Elect has one of several members have them run. Identity is this one's.
	Elect    bool
	Identity string
	// Server is the URL by which others reach the API. Reserved are names and addresses that no node may serve by.
	Server   string
	Reserved func(context.Context) (certificates.Reserved, error)
	// Authority is what certificates are signed with, for Life at most, Bundle what all are known by. Enqueue tells of
	// another bundle.
	Authority func() (*x509.Certificate, crypto.Signer, error)
	Life      time.Duration
	Bundle    Bundle
	// PodRanges are those that nodes are given parts of for their pods; none: they are given none. No part of
	// ServiceRanges is given.
	PodRanges     []nodeipam.Range
	ServiceRanges []netip.Prefix
	// Nodes says when nodes are lost.
	Nodes nodelifecycle.Rules
	// SecretToken makes the token of a service account that a secret keeps.
	SecretToken accounttoken.Sign
	Log         *slog.Logger
}

// Bundle is the authorities of a cluster, in PEM, which may change.
type Bundle interface {
	CurrentCABundleContent() []byte
}

// Manager has controllers run.
type Manager struct {
	options Options
	enabled []kind
	reader  kubernetes.Interface
	changed listeners
}

// New makes a manager.
func New(o Options) (*Manager, error) {
	reader, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("make client of controllers: %w", err)
	}
	m := &Manager{options: o, reader: reader}
	for _, k := range kindsOf() {
		if controller.Enabled(k.name, !k.off, o.List) {
			m.enabled = append(m.enabled, k)
		}
	}
	return m, nil
}

// Run has controllers run, whenever this member is the one, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.enabled) == 0 {
		<-ctx.Done()
		return nil
	}
	// The API server watches all that controllers use of it, but where its configuration has it watch less.
	core := m.options.Informers.Core().V1()
	for _, i := range []cache.SharedIndexInformer{
		core.Namespaces().Informer(), core.ServiceAccounts().Informer(), core.Secrets().Informer(), core.Pods().Informer(), core.Nodes().Informer(),
	} {
		i.HasSynced()
	}
	m.options.Informers.StartWithContext(ctx)
	if !m.options.Elect {
		m.lead(ctx)
		return nil
	}
	return controller.Election{Client: m.reader, Lease: lease, Identity: m.options.Identity, Log: m.options.Log}.Run(ctx, m.lead)
}

// lead has each controller run until ctx ends, and waits for all. One that cannot be made does not keep others away.
func (m *Manager) lead(ctx context.Context) {
	m.changed.clear()
	own := informers.NewSharedInformerFactoryWithOptions(m.reader, 0, informers.WithTransform(controller.WithoutManagers))
	var group sync.WaitGroup
	for _, k := range m.enabled {
		log := m.options.Log.With("controller", k.name)
		c, err := m.make(k, own, log)
		if err != nil {
			log.Error("controller does not run", "error", err)
			continue
		}
		if c == nil {
			continue // it has nothing to do in this cluster
		}
		group.Go(func() { c.Run(ctx) })
	}
	own.StartWithContext(ctx)
	group.Wait()
	own.Shutdown()
}

func (m *Manager) make(k kind, own informers.SharedInformerFactory, log *slog.Logger) (controller.Controller, error) {
	config := controller.As(m.options.Config, k.account)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", k.account, err)
	}
	return k.make(parts{m: m, config: config, client: client, own: own, log: log})
}

// Enqueue tells controllers that the bundle is another one. It is called by who watches its file.
func (m *Manager) Enqueue() { m.changed.tell() }

// listeners are those of one term.
type listeners struct {
	mu  sync.Mutex
	all []func()
}

func (l *listeners) add(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, f)
}

func (l *listeners) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

func (l *listeners) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.all {
		f()
	}
}
