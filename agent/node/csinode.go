package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// csiNode keeps the CSINode: by what names drivers know this node, where it is by their word, and how many volumes they
// can have on it.
type csiNode struct {
	client   Client
	node     string
	current  func() *corev1.Node
	drivers  func() []Driver
	migrated []string
	made     func() // is called when there is one
	wake     chan struct{}
	forget   atomic.Bool // what is known may not be so any more
	log      *slog.Logger

	latest *storagev1.CSINode // as the server has answered last; nil: it has to be asked
	owner  types.UID
	seen   map[string]bool // drivers that have been registered with this agent
	began  time.Time
	told   map[string]string // why a driver is left out
}

// driversBack is how long drivers that an agent before this one has had count as there: after a restart they register
// one by one, and without them no pod that needs one would be placed here meanwhile.
const driversBack = 2 * time.Minute

// checkEvery is how often it is looked at whether somebody has changed it: a node may not watch it.
const checkEvery = 5 * time.Minute

// run keeps it until ctx ends.
func (c *csiNode) run(ctx context.Context) {
	c.began, c.seen, c.told = time.Now(), map[string]bool{}, map[string]string{}
	p := pause{least: 200 * time.Millisecond, most: 10 * time.Second}
	t := trouble{log: c.log, what: "keep the CSINode"}
	checked := time.Now()
	for {
		if c.forget.Swap(false) || time.Since(checked) >= checkEvery {
			c.latest, checked = nil, time.Now()
		}
		err := c.keep(ctx)
		wait, bell := jitter(checkEvery), c.wake
		if left := driversBack - time.Since(c.began); left > 0 {
			wait = left + time.Second
		}
		if err != nil && ctx.Err() == nil {
			t.failed(err)
			wait, bell = p.after(err), nil
		} else {
			t.done()
			p.reset()
		}
		if !sleep(ctx, wait, bell) {
			return
		}
	}
}

// keep makes it what it should be.
func (c *csiNode) keep(ctx context.Context) error {
	node := c.current()
	if node == nil {
		c.latest = nil // it goes with the Node
		return nil
	}
	if node.UID != c.owner {
		c.latest, c.owner = nil, node.UID
	}
	ctx, cancel := context.WithTimeout(ctx, askServer)
	defer cancel()
	for try := 0; ; try++ {
		err := c.attempt(ctx, node)
		switch {
		case err == nil:
			c.made()
			return nil
		case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
			c.latest = nil
			if try < 2 {
				continue
			}
		}
		return fmt.Errorf("keep CSINode: %w", err)
	}
}

func (c *csiNode) attempt(ctx context.Context, node *corev1.Node) error {
	if c.latest == nil {
		var have storagev1.CSINode
		err := c.client.Get(ctx, csiNodes, types.NamespacedName{Name: c.node}, &have)
		switch {
		case apierrors.IsNotFound(err):
			want := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: c.node}}
			c.fill(want, node)
			var answer storagev1.CSINode
			if err := c.client.Create(ctx, csiNodes, want, &answer); err != nil {
				return err
			}
			return c.took(&answer)
		case err != nil:
			return err
		case have.Name != c.node:
			return fmt.Errorf("%w: CSINode %q", errOther, have.Name)
		}
		c.latest = &have
	}
	for {
		want := c.latest.DeepCopy()
		others := c.fill(want, node)
		if equality.Semantic.DeepEqual(c.latest, want) {
			return nil
		}
		var answer storagev1.CSINode
		if err := c.client.Update(ctx, csiNodes, want, &answer); err != nil {
			return err
		}
		if err := c.took(&answer); err != nil || !others {
			return err
		}
	}
}

func (c *csiNode) took(answer *storagev1.CSINode) error {
	if answer.Name != c.node {
		c.latest = nil
		return fmt.Errorf("%w: CSINode %q", errOther, answer.Name)
	}
	c.latest = answer
	return nil
}

// annotationMigrated has the plugins whose volumes drivers are asked for.
const annotationMigrated = corev1.MigratedPluginsAnnotationKey

// fill makes it what it should be, but for drivers that are other ones than before: the API has a driver come and go,
// and not change. They are left out, and come with the next write.
func (c *csiNode) fill(o *storagev1.CSINode, node *corev1.Node) (others bool) {
	o.OwnerReferences = owned(o.OwnerReferences, c.node, node.UID)
	if text := strings.Join(slices.Sorted(slices.Values(c.migrated)), ","); text != "" {
		if o.Annotations == nil {
			o.Annotations = map[string]string{}
		}
		o.Annotations[annotationMigrated] = text
	} else {
		delete(o.Annotations, annotationMigrated)
	}
	have := map[string]Driver{}
	for _, d := range ask(c.drivers) {
		c.seen[d.Name] = true
		have[d.Name] = d
	}
	list := []storagev1.CSINodeDriver{} // the API wants one, and be it empty
	for _, old := range o.Spec.Drivers {
		d, here := have[old.Name]
		switch {
		case here:
			delete(have, old.Name)
			now := old
			if c.fits(&d, node) {
				now = entry(&d)
			}
			if now.NodeID != old.NodeID || !slices.Equal(now.TopologyKeys, old.TopologyKeys) {
				others = true
				continue
			}
			list = append(list, now)
		case !c.seen[old.Name] && time.Since(c.began) < driversBack:
			list = append(list, old)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if d := have[name]; c.fits(&d, node) {
			list = append(list, entry(&d))
		}
	}
	o.Spec.Drivers = list
	return others
}

func entry(d *Driver) storagev1.CSINodeDriver {
	out := storagev1.CSINodeDriver{Name: d.Name, NodeID: d.NodeID, TopologyKeys: slices.Sorted(maps.Keys(d.Topology))}
	if d.MaxVolumes > 0 {
		n := int32(min(d.MaxVolumes, math.MaxInt32))
		out.Allocatable = &storagev1.VolumeNodeResources{Count: &n}
	}
	return out
}

// fits says whether the Node has the labels that a driver says where it is by. Who reads the keys of the CSINode looks
// for the labels, so that these come first. A Node that has others is somewhere else by people's word, and does not
// have the driver, as under kubelet.
func (c *csiNode) fits(d *Driver, node *corev1.Node) bool {
	fits, why := true, d.unfit()
	for _, key := range slices.Sorted(maps.Keys(d.Topology)) {
		switch has, ok := node.Labels[key]; {
		case ok && has != d.Topology[key]:
			why = cmp.Or(why, fmt.Sprintf("it says that the node is in %s=%s, and a label of the Node says %s", key, d.Topology[key], has))
		case !ok && !mayHave(key):
			why = cmp.Or(why, fmt.Sprintf("it says that the node is in %s=%s, and a node may not give itself that label", key, d.Topology[key]))
		case !ok:
			fits = false // it is about to be written
		}
	}
	if why != "" && c.told[d.Name] != why {
		c.log.Warn("CSI driver is left out of the CSINode", "driver", d.Name, "error", why)
	}
	c.told[d.Name] = why
	return fits && why == ""
}
