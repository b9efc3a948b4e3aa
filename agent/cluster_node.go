package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/intercept"
	"github.com/berth-node/berth/agent/node"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/csi"
)

// nodeClient is the client of the API server as the Node's keeper calls it.
type nodeClient struct{ *cluster.Client }

var _ node.Client = nodeClient{}

// Create implements [node.Client].
func (c nodeClient) Create(ctx context.Context, of schema.GroupVersionResource, o node.Object, into runtime.Object) error {
	return c.Client.Create(ctx, of, o, into)
}

// Update implements [node.Client].
func (c nodeClient) Update(ctx context.Context, of schema.GroupVersionResource, o node.Object, into runtime.Object) error {
	return c.Client.Update(ctx, of, o, into)
}

// agentFeatures are those that a scheduler and admission want to be declared by name, by the gates that kubelet has
// them under, as far as the agent has them.
var agentFeatures = map[string]bool{
	"DRAOptionalNodeOperations":               true,
	"ExtendWebSocketsToKubelet":               true,
	"InPlacePodLevelResourcesVerticalScaling": true,
	"RestartAllContainersOnContainerExits":    true,
	"UserNamespacesHostNetworkSupport":        true, // where the runtime has it
	"VolumeBindMountOptions":                  true, // likewise
}

// clusterNode is the node as the API server has it.
type clusterNode struct {
	agent   *Agent
	node    *node.Node
	div     config.Division
	machine node.Machine
	devices pluginResources
}

// openClusterNode puts together what keeps the Node. Nothing is asked before run. wentBack is told that the API server
// knows less than it has known; nil: nobody is.
func (a *Agent) openClusterNode(div config.Division, wentBack func()) (*clusterNode, error) {
	c := &a.cfg
	labels, err1 := c.Labels()
	taints, err2 := c.ParsedTaints()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	n := &clusterNode{agent: a, div: div, machine: node.ReadMachine("/")}
	n.devices = pluginResources{file: filepath.Join(c.RootDir, pluginResourcesFile), log: a.log}
	if err := n.devices.load(); err != nil {
		return nil, err
	}
	port := int32(0)
	if c.Server.Enabled {
		port = c.Server.Port
	}
	n.node = node.New(node.Config{
		Client: nodeClient{a.member.unlimited}, Events: a.events, Register: c.Register, Limited: c.Enforces(config.EnforcePods),
		ReportEvery: c.StatusReport, LeaseDuration: c.LeaseDuration, MaxImages: c.MaxImages,
		Identity: node.Identity{
			Name: c.NodeName, Labels: labels, Taints: taints, ProviderID: c.ProviderID, Version: node.Version(c.Version), Port: port,
			Features: agentFeatures,
		},
		Sources: node.Sources{
			Machine: func() node.Machine { return n.machine }, Addresses: a.addresses, Resources: n.resources,
			Pressure: n.pressure, Runtime: n.runtime, Images: n.images, Drivers: n.drivers, InUse: n.inUse, NotReady: n.notReady,
		},
		Written: func(*corev1.Node) { n.devices.written() }, WentBack: wentBack, Log: a.log,
	})
	return n, nil
}

// run keeps the Node until ctx ends.
func (n *clusterNode) run(ctx context.Context, g *errgroup.Group) {
	a := n.agent
	a.managers.devices.Notify(n.node.Changed)
	a.evictions.node.Notify(n.node.Changed)
	end := a.managers.csi.drivers.Subscribe(func(csi.Event) { n.node.DriversChanged() })
	g.Go(func() error {
		defer end()
		return n.node.Run(ctx)
	})
	g.Go(func() error {
		// It ends with ctx.
		_ = a.pods.Watch(ctx, func(watch.EventType, *corev1.Pod) error {
			if len(a.managers.csi.drivers.List()) > 0 {
				n.node.Changed() // volumes may be in use that were not, or are no more
			}
			return nil
		})
		return nil
	})
	if len(a.cfg.NodeIPs) == 0 {
		g.Go(func() error {
			node.WatchAddresses(ctx, nodeIPs, n.node.Changed, a.log)
			return nil
		})
	}
}

// resources are what the node was divided into when the agent was started, as its groups are, and devices as they are
// now.
func (n *clusterNode) resources() node.Resources {
	out := node.Resources{Capacity: maps.Clone(n.div.Capacity), Allocatable: maps.Clone(n.div.Allocatable)}
	// Tasks are no resource of the API.
	delete(out.Capacity, config.PidResource)
	delete(out.Allocatable, config.PidResource)
	out.Capacity[corev1.ResourcePods] = out.Allocatable[corev1.ResourcePods]
	out.Devices, out.Well = n.agent.managers.devices.Resources()
	out.Gone, out.Fresh = n.devices.known(slices.Collect(maps.Keys(out.Devices)))
	return out
}

func (n *clusterNode) pressure() []node.Pressure {
	var out []node.Pressure
	for _, of := range n.agent.evictions.holding() {
		out = append(out, node.Pressure{Type: of, Holds: true})
	}
	return out
}

// notReady is why pods are not to come, though the runtime is ready.
func (n *clusterNode) notReady() []string {
	if n.agent.pods.Closed() {
		return []string{"node is shutting down"} // kubelet's words
	}
	return nil
}

// runtime is how the runtime is.
func (n *clusterNode) runtime(ctx context.Context) (node.Runtime, error) {
	v, err := n.agent.cfg.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return node.Runtime{}, err
	}
	s, err := n.agent.cfg.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	return node.Runtime{Name: v.GetRuntimeName(), Version: v.GetRuntimeVersion(), Status: s}, err
}

func (n *clusterNode) images(ctx context.Context) ([]node.Image, error) {
	list, err := n.agent.cfg.Runtime.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	var out []node.Image
	for _, i := range list.GetImages() {
		out = append(out, node.Image{Names: slices.Concat(i.GetRepoDigests(), i.GetRepoTags()), Size: int64(i.GetSize())})
	}
	return out, nil
}

// imageCalls tells of calls of the runtime after which it may have other images.
func imageCalls(changed func()) intercept.Interceptor {
	return func(_ context.Context, c intercept.Call, do func() error) error {
		err := do()
		if c.Operation == "pull_image" || c.Operation == "remove_image" {
			changed()
		}
		return err
	}
}

func (n *clusterNode) drivers() []node.Driver {
	var out []node.Driver
	for _, d := range n.agent.managers.csi.drivers.List() {
		out = append(out, node.Driver{Name: d.Name, NodeID: d.NodeID, Topology: d.Topology, MaxVolumes: d.MaxVolumes})
	}
	return out
}

// inUse are the volumes that a controller attaches and must not detach, by the names that controllers have for them.
func (n *clusterNode) inUse() []corev1.UniqueVolumeName {
	var out []corev1.UniqueVolumeName
	v := n.agent.managers.csi
	for _, s := range v.volumes.List() {
		if s.Ephemeral || !v.attaches(s.Driver) {
			continue
		}
		out = append(out, corev1.UniqueVolumeName("kubernetes.io/csi/"+s.Driver+"^"+s.Handle))
	}
	return out
}

// attaches says whether the volumes of a driver are attached by a controller: they are where nobody says otherwise.
func (v *csiVolumes) attaches(driver string) bool {
	o, err := v.object(desired.API, driver)
	return err != nil || o.Spec.AttachRequired == nil || *o.Spec.AttachRequired
}

// pluginResourcesFile has, in the root directory, the resources that plugins have had devices of.
const pluginResourcesFile = "node-devices.json"

const pluginResourcesVersion = 1

// pluginResources are the resources that plugins have had devices of, also before the agent was started: the Node has
// them still, and they are no one's when no plugin has come back.
type pluginResources struct {
	file string
	log  *slog.Logger

	mu    sync.Mutex
	names []corev1.ResourceName
	kept  bool // the file has them
	fresh bool // nothing was known before the agent was started, and the Node was not written since
	told  bool // that the file is not written
}

type pluginResourcesRecord struct {
	Version   int                   `json:"version"`
	Resources []corev1.ResourceName `json:"resources"`
}

func (p *pluginResources) load() error {
	r, bad, err := record.Load(p.file, pluginResourcesVersion, func(data []byte) (*pluginResourcesRecord, error) {
		r := &pluginResourcesRecord{}
		return r, json.Unmarshal(data, r)
	})
	if err != nil {
		return err
	}
	p.fresh = r == nil || bad != nil
	if r != nil {
		p.names, p.kept = r.Resources, true
	}
	return nil
}

// known are all resources that were plugins' at some time, and whether there may be others that nobody knows of.
func (p *pluginResources) known(now []corev1.ResourceName) (all []corev1.ResourceName, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range now {
		if !slices.Contains(p.names, name) {
			p.names, p.kept = append(slices.Clone(p.names), name), false
		}
	}
	slices.Sort(p.names)
	if !p.fresh {
		p.keep()
	}
	return slices.Clone(p.names), p.fresh
}

// had are all that are known.
func (p *pluginResources) had() []corev1.ResourceName {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names)
}

// written is called when the Node has been written: what it has had of devices that nobody knew is 0 now. Until then a
// next agent has to do the same, and is to find no file.
func (p *pluginResources) written() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = false
	p.keep()
}

// keep writes the file before anybody is told of a resource that is new. On a disk that cannot be written it is tried
// with every look at the resources.
func (p *pluginResources) keep() {
	if p.kept {
		return
	}
	err := record.Write(p.file, pluginResourcesRecord{pluginResourcesVersion, p.names})
	p.kept = err == nil
	if err != nil && !p.told {
		p.log.Warn("it is not kept which devices the node has had", "error", err)
	}
	p.told = err != nil
}
