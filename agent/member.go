package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	eventsto "github.com/berth-node/berth/agent/event/apiserver"
	"github.com/berth-node/berth/agent/metrics"
	podsof "github.com/berth-node/berth/agent/source/apiserver"
	"github.com/berth-node/berth/agent/source/apiserver/kept"
	"github.com/berth-node/berth/agent/status"
	statusesto "github.com/berth-node/berth/agent/status/apiserver"
)

// member is the agent's part in a cluster: what it is told by the API server, and what it tells it.
type member struct {
	client *cluster.Client
	// For those who bound their requests themselves: pods do not wait for their tokens behind events, nor the lease
	// behind pods.
	unlimited *cluster.Client

	source   *podsof.Source
	statuses *statusesto.Writer
	counted  *metrics.Statuses
	requests *metrics.Client
	events   *eventsto.Sink
	node     *clusterNode
	kept     *kept.Store // what is kept for a start without the API server; nil: nothing is
}

// openMember reads how the API server is reached, and puts together what speaks to it for an agent. Nothing is asked
// yet; nil where the node is its own.
func openMember(a *Agent) (*member, error) {
	c := &a.cfg
	if !c.Joined() {
		return nil, nil
	}
	requests := metrics.NewClient()
	client, err := cluster.Open(cluster.Config{
		Kubeconfig: c.Kubeconfig, BootstrapKubeconfig: c.BootstrapKubeconfig, CertDir: c.CertDir, NodeName: c.NodeName,
		Rotate: c.RotateCertificates, Addresses: a.addresses,
		ServerBootstrap: c.ServerTLSBootstrap && c.Enabled && c.Port != 0 && c.TLSCertFile == "",
		ContentType:     c.ContentType, QPS: c.QPS, Burst: c.Burst, Version: c.Version, Observer: requests, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	m := &member{
		client: client, unlimited: client.Unlimited(), counted: metrics.NewStatuses(), requests: requests,
	}
	m.statuses = statusesto.New(statusesto.Config{
		Client: m.unlimited, Node: c.NodeName, NodeUID: m.uid, Observer: m.counted, Log: c.Log,
	})
	m.events = eventsto.New(eventsto.Config{
		Client: m.unlimited, Host: c.NodeName, QPS: c.EventQPS, Burst: c.EventBurst, Calm: m.statuses.Calm, Log: c.Log,
	})
	m.kept = openKept(c)
	var keep podsof.Store
	if m.kept != nil {
		keep = m.kept
	}
	m.source = podsof.New(podsof.Config{
		Client: client, NodeName: c.NodeName, Keep: keep, Log: c.Log, Here: a.managers.again,
		Seen: m.seen, Listed: m.statuses.Listed, Back: m.statuses.Reset, Mirror: m.statuses.Mirror,
		Gone: func(key types.NamespacedName, uid types.UID) {
			m.statuses.Gone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid}})
		},
	})
	return m, nil
}

// keptDir is where the API server's pods are kept for a start without it, below the root directory.
const keptDir = "offline"

// openKept opens what keeps them; nil: nothing does, and nothing is kept. What is wrong with that is no reason for the
// node not to run what it has.
func openKept(c *Config) *kept.Store {
	dir := filepath.Join(c.RootDir, keptDir)
	if c.Offline != config.OfflineKeep {
		if err := kept.Remove(dir); err != nil {
			c.Log.Warn("pods that were kept for a start without the API server are not removed", "error", err)
		}
		return nil
	}
	s, err := kept.Open(kept.Config{
		Dir: dir, Node: c.NodeName, Credentials: os.Getenv("CREDENTIALS_DIRECTORY"), Log: c.Log,
	})
	if err != nil {
		c.Log.Error("nothing is kept for a start without the API server, until the agent is started again", "error", err)
		return nil
	}
	return s
}

// seen takes a pod that the API server has. Copies of static pods are told of apart.
func (m *member) seen(pod *corev1.Pod) {
	if !desired.IsMirror(pod) {
		m.statuses.Seen(pod)
	}
}

// addresses are the node's, the main one first: those of the settings, else those by which it reaches the world.
func (a *Agent) addresses() []string {
	if len(a.cfg.NodeIPs) > 0 {
		return a.cfg.NodeIPs
	}
	return nodeIPs()
}

// uid is that of the Node; "" while there is none.
func (m *member) uid() types.UID {
	if m.node == nil {
		return ""
	}
	return m.node.node.UID()
}

// labels are the node's: those that the API server has it under, or had when that is not known yet and is kept, beside
// those of its settings.
func (m *member) labels(own map[string]string) map[string]string {
	if m == nil || m.node == nil {
		return own
	}
	out := maps.Clone(own)
	if now := m.node.node.Current(); now != nil {
		m.keepLabels(now.Labels)
		maps.Copy(out, now.Labels)
		return out
	}
	maps.Copy(out, m.keptLabels())
	return out
}

// labelsName is what the labels that the API server has the node under are kept as: pods have been put here by them.
const labelsName = "labels"

func (m *member) keepLabels(labels map[string]string) {
	if m.kept == nil {
		return
	}
	text, err := json.Marshal(labels)
	if had, ok := m.kept.Handed(kept.OfNode, labelsName); err != nil || ok && bytes.Equal(had, text) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing waits for it
	m.kept.Hand(ctx, kept.OfNode, labelsName, text)
}

func (m *member) keptLabels() (labels map[string]string) {
	if m.kept == nil {
		return nil
	}
	if text, ok := m.kept.Handed(kept.OfNode, labelsName); ok {
		_ = json.Unmarshal(text, &labels) // else there are none
	}
	return labels
}

// offered are the resources that plugins of the node have offered at some time.
func (m *member) offered() []corev1.ResourceName {
	if m == nil || m.node == nil {
		return nil
	}
	return m.node.devices.had()
}

// imagesChanged tells that the runtime may have other images.
func (m *member) imagesChanged() {
	if m != nil {
		m.node.node.ImagesChanged()
	}
}

// taints are the node's: those that the API server has it with, else those that it is registered with.
func (m *member) taints(own []corev1.Taint) func() []corev1.Taint {
	if m == nil {
		return nil
	}
	return func() []corev1.Taint {
		if m.node == nil || m.node.node.Current() == nil {
			return own
		}
		return m.node.node.Current().Spec.Taints
	}
}

// eventSinks are where events go beside the ring.
func (m *member) eventSinks() []event.Sink {
	if m == nil {
		return nil
	}
	return []event.Sink{m.events}
}

// statusSinks are where statuses go.
func (m *member) statusSinks() []status.Sink {
	if m == nil {
		return nil
	}
	return []status.Sink{m.statuses}
}

// join opens what keeps the Node, once there is what that is made of.
func (m *member) join(a *Agent, div config.Division) (err error) {
	if m == nil {
		return nil
	}
	m.node, err = a.openClusterNode(div, m.statuses.Reset)
	return err
}

// run speaks to the API server until ctx ends, and returns what it wants; nil where there is none.
func (m *member) run(ctx context.Context, g *errgroup.Group, read <-chan struct{}) <-chan desired.Update {
	if m == nil {
		return nil
	}
	wanted := make(chan desired.Update)
	g.Go(func() error { return m.client.Run(ctx) })
	g.Go(func() error { return ended(ctx, "read pods of the API server", m.source.Run(ctx, wanted)) })
	g.Go(func() error { m.statuses.Run(ctx); return nil })
	g.Go(func() error { m.events.Run(ctx); return nil })
	g.Go(func() error {
		end := m.node.node.Subscribe(func(*corev1.Node) { m.statuses.Registered() })
		defer end()
		<-ctx.Done()
		return nil
	})
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-read:
			m.statuses.Settled()
		}
		return nil
	})
	m.node.run(ctx, g)
	return wanted
}
