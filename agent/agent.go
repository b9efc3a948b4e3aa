// Package agent is the node's agent: it has the parts of a kubelet, and this file puts them together. What runs the
// containers is handed in.
package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/api/pki"
	"github.com/berth-node/berth/agent/api/server"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/credential"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/dra"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/expand"
	"github.com/berth-node/berth/agent/intercept"
	"github.com/berth-node/berth/agent/kills"
	"github.com/berth-node/berth/agent/metrics"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/stats"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/agent/token"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/internal/disk"
)

// Config is what an [Agent] works with.
type Config struct {
	config.Config

	Runtime pod.Runtime
	// Layers tells what containers have written. Nil: the runtime's statistics are asked, which are more than that.
	Layers func(context.Context) map[string]*runtimeapi.FilesystemUsage
	// Shed removes what containers that have ended have written, until so much is freed. Nil: the runtime cannot do
	// that and keep the containers.
	Shed   func(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error)
	Images http.Handler // serves /images of the API
	// ImageParts are the bytes of what each image is made of, by ID and a key that those have in common who share a
	// part. Nil: what images share is not known.
	ImageParts func() map[string]map[string]int64
	// ImagesCame says since when images are here, by ID. Nil: that is not known of those that are there at the start.
	ImagesCame func() map[string]time.Time
	// CollectImages removes what no image explains, as what failed pulls have left. Nil: the runtime sees to that.
	CollectImages func(context.Context) error
	// ImagesNamed, of a runtime that tells, has fn called with the names that have an image from now on.
	ImagesNamed func(fn func(names []string))
	// AskForRoom, of a runtime that has images of its own accord, has fn called where one has no room: see
	// [imagegc.Collector.Free].
	AskForRoom func(fn func(ctx context.Context, since time.Time) (bool, error))
	Version    string
	// Configz is what /configz shows; nil: it is not served.
	Configz func() any
	// OneAtATime has pods started and taken down one after the other, as memory is short.
	OneAtATime bool
	// Ready is called once, when the agent answers and has read every manifest.
	Ready func()
	Log   *slog.Logger
}

// drivers is [Config.CSI]; of a node of a cluster, where it is deployed as other drivers are, without the agent's own.
func (c *Config) drivers() config.CSI {
	out := c.CSI
	out.Local.On = out.Local.On && !c.Joined()
	return out
}

// Agent is one node's agent.
type Agent struct {
	cfg       Config
	log       *slog.Logger
	manifests *manifests
	pods      *pod.Manager
	managers  managers
	events    *event.Recorder
	ring      *event.Ring // of the events
	tree      *kube.Tree
	classes   *classes
	synced    atomic.Bool
	read      chan struct{} // closed when synced
	stats     *stats.Collector
	counted   counted
	room      room
	server    atomic.Pointer[server.Server] // nil before it serves
	authority *pki.Authority                // nil: certificates are somebody else's
	member    *member                       // nil: the node is its own
	evictions evictions
	kills     *kills.Manager
	groups    *os.File // locked as long as the agent lives
}

// counted is what of the agent's work metrics tell.
type counted struct {
	probes *metrics.Probes
	work   *metrics.Work
}

// managers have what pods are given of the node for themselves.
type managers struct {
	pins    *pinning.Manager // nil: nothing is pinned
	devices *device.Manager
	claims  *dra.Manager
	csi     *csiVolumes
	tokens  *token.Manager   // nil: there is no API server
	certs   *podcert.Manager // nil, too

	provisioner *provisioner
	expander    *expand.Expander // nil: there is no API server
}

// New puts the parts together and takes the groups of pods for itself. Nothing runs before [Agent.Run].
func New(c Config) (*Agent, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	work := metrics.NewWork()
	if c.Endpoint != "" {
		c.Runtime = &recordedRuntime{Runtime: c.Runtime, record: func() error { return recordRuntime(c.RootDir, c.Endpoint) }}
	}
	a := &Agent{log: c.Log, counted: counted{metrics.NewProbes(), work}, read: make(chan struct{})}
	calls := []intercept.Interceptor{work.Call, intercept.Log(c.Log, "runtime was called")}
	if c.Joined() {
		calls = append(calls, imageCalls(func() { a.member.imagesChanged() }))
	}
	c.Runtime = intercept.Runtime(c.Runtime, calls...)
	a.cfg = c
	a.room.read = a.read
	memory, err := hostMemory()
	if err != nil {
		return nil, err
	}
	h, tree, div, err := groupTree(c.Config, memory)
	if err != nil {
		return nil, err
	}
	a.tree = tree
	if a.member, err = openMember(a); err != nil {
		return nil, err
	}
	if err := a.open(h, div, memory); err != nil {
		if a.groups != nil {
			a.groups.Close()
		}
		return nil, err
	}
	return a, nil
}

// open opens the agent's parts. The groups get their values when nothing else can refuse the start any more, and never
// while they are another agent's.
func (a *Agent) open(h *cgroups.Hierarchy, div config.Division, memory int64) error {
	c := a.cfg
	var err error
	if a.groups, err = lockGroups(h, a.tree, c.CgroupRoot); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := a.openPods(div, memory); err != nil {
		return err
	}
	a.classes = newClasses(a.tree, a.pods, a.log)
	a.stats = a.collector(h, memory)
	if c.AskForRoom != nil {
		c.AskForRoom(a.room.freeForImport)
	}
	a.evictions, err = openEviction(&c, evictable{h, a.tree, a.pods, a.room.images, a.events})
	if err != nil {
		return err
	}
	if err := a.member.join(a, div); err != nil {
		return err
	}
	if c.ImagesNamed != nil {
		c.ImagesNamed(func(names []string) { // whoever has brought them: an archive, or a command, too
			a.pods.ImagesNamed(names)
			a.member.imagesChanged()
		})
	}
	a.kills = kills.New(kills.Config{
		RootDir: c.RootDir, Groups: kills.Tree{Pods: a.tree, All: h}, Pods: a.pods.List, Watch: a.pods.Watch, Read: a.read,
		Node: a.evictions.figures, Events: a.events, Log: a.log,
	})
	if a.authority, err = server.OpenAuthority(c.Server, c.Joined()); err != nil {
		return err
	}
	if a.manifests, err = openManifests(&c, a.pods.List, a.events); err != nil {
		return err
	}
	if err := a.tree.Setup(); err != nil {
		return err
	}
	if a.groups == nil { // there were none
		if a.groups, err = lockGroups(h, a.tree, c.CgroupRoot); err != nil {
			return err
		}
	}
	if err := reserveNode(&c.Config, a.tree, h, div); err != nil {
		return err
	}
	if err := settleReserved(&c.Config, a.tree, a.log); err != nil {
		return err
	}
	return leaveWord(&c, a.tree, h)
}

// leaveWord says in the run directory where the groups are and by what pods are evicted, for `berth cgroups`.
func leaveWord(c *Config, tree *kube.Tree, h *cgroups.Hierarchy) error {
	rules := evictionRules(c, h)
	layout := kube.Layout{
		Root: c.CgroupRoot, LogDir: c.LogDir, NodeName: c.NodeName, Options: tree.Options(),
		Pins: filepath.Join(c.RootDir, pinsFile), Kills: filepath.Join(c.RootDir, kills.File),
		Evicts: &rules,
	}
	if err := layout.Save(c.RunDir); disk.Unwritable(err) {
		c.Log.Warn("berth cgroups may not know the groups of this node", "error", err)
	} else if err != nil {
		return err
	}
	return nil
}

// eventsFile is where the latest events outlive a restart, below the root directory.
const eventsFile = "events"

// boundName is the PersistentVolume that the claim of a pod's ephemeral volume has; "": none yet.
type boundName func(pod types.UID, volume string) string

// open opens who gives pods something of the node for themselves. Of bound they ask when there are pods.
func (m *managers) open(
	a *Agent, div config.Division, own map[string]string, objects *object.Stores, bound boundName,
) error {
	c := &a.cfg
	var err error
	if m.devices, err = openDevices(c); err != nil {
		return err
	}
	if m.claims, err = openClaims(c, func() map[string]string { return a.member.labels(own) }); err != nil {
		return err
	}
	if m.pins, err = openPins(c, div, m.devices, a.tree.Options()); err != nil {
		return err
	}
	settings := csiSettings{place: c.Place, node: c.NodeName, version: c.Version, csi: c.drivers(), boundName: bound}
	if a.openIssued(); m.tokens != nil {
		settings.token = m.tokens.Token
	}
	if m.csi, err = openCSI(settings, objects, c.Log); err != nil {
		return err
	}
	if a.member != nil {
		m.expander = openExpander(expand.Config{Client: a.member.client, Events: a.events, Node: c.NodeName, Log: c.Log}, m.csi)
	}
	m.provisioner, err = openProvisioner(
		provisionSettings{c.Place, c.NodeName, c.CSI.Grace, own, a.events}, m.csi, c.Log)
	return err
}

// openPods opens what pods are given of the node, and puts together what runs them.
func (a *Agent) openPods(div config.Division, memory int64) error {
	c := a.cfg
	credentials, err := openCredentials(c)
	if err != nil {
		return err
	}
	own, err := c.Labels()
	if err != nil {
		return err
	}
	taints, err := c.ParsedTaints()
	if err != nil {
		return err
	}
	a.ring = event.NewRing(event.Config{Host: c.NodeName, File: filepath.Join(c.RootDir, eventsFile), Log: c.Log})
	a.events = event.NewRecorder(c.NodeName, append([]event.Sink{a.ring}, a.member.eventSinks()...)...)
	pulled, err := openPulled(&c)
	if err != nil {
		return err
	}
	objects := newObjects(c.Joined())
	var volumes *volume.Manager
	bound := func(pod types.UID, name string) string { return volumes.Bound(pod, name) }
	if err := a.managers.open(a, div, own, objects, bound); err != nil {
		return err
	}
	volumes = volume.New(volume.Config{
		Root: c.RootDir, Own: []string{c.RunDir}, Open: deviceDirs(c.Place), Log: c.Log, Quotas: c.Resources.LocalStorage,
		CSI: a.managers.volumes(),
	})
	groups, given := a.givePods(objects)
	parallel := 0 // as many as are good for the machine
	if c.OneAtATime {
		parallel = 1
	}
	a.pods, err = pod.New(pod.Config{
		Runtime: freeingRuntime{c.Runtime, a.room.free, a.log}, Objects: objects,
		Cgroups: intercept.Cgroups(groups, a.counted.work.Group, intercept.Log(c.Log, "cgroup was changed")),
		Volumes: volumes,
		Node: pod.NodeConfig{
			Name: c.NodeName, Labels: func() map[string]string { return a.member.labels(own) }, Taints: a.member.taints(taints), IPs: a.addresses, Memory: memory, Allocatable: div.Allocatable,
			Groups: a.tree.Options(), GroupFirst: c.CgroupDriver == cgroups.DriverSystemd, Dead: &c.Dead,
			Short: pod.Short{Holding: a.evictions.holding, Cluster: c.Joined()},
		},
		Given: given, Issued: a.managers.issued(), Statuses: status.NewWriter(a.member.statusSinks()...),
		Images:   pod.ImageConfig{Credentials: credentials, Pulled: pulled, Room: a.room.freeIfFull},
		Security: pod.SecurityConfig{Sysctls: c.Sysctls, SeccompDefault: c.SeccompDefault},
		DNS:      pod.DNSConfig{ResolvConf: c.ResolvConf, Servers: c.ClusterDNS, Domain: c.ClusterDomain},
		RootDir:  c.RootDir, LogDir: c.LogDir,
		Backoff: plan.Delays{Initial: c.BackoffInitial, Max: c.BackoffMax}, MaxParallelStarts: parallel,
		Observers: pod.Observers{Probes: a.counted.probes, Work: a.counted.work}, Events: a.events, Log: c.Log,
	})
	if err != nil {
		return err
	}
	a.room.images = openImages(&c, a.pods, pulled, a.events)
	return nil
}

// newObjects are the objects that pods refer to, of which none is here yet.
func newObjects(joined bool) *object.Stores {
	objects := new(object.Stores)
	if joined {
		// Else a container that starts before they are here would be told of none.
		objects.Of(desired.API).Expect(object.Service)
	}
	return objects
}

// openCredentials is nil when no plugins were configured.
func openCredentials(c Config) (pod.Credentials, error) {
	if c.CredentialConfig == "" {
		return nil, nil
	}
	return credential.New(credential.Config{Path: c.CredentialConfig, BinDir: c.CredentialBinDir, Log: c.Log})
}

// settleAfter is how long after the last change of a pod a burst is over.
const settleAfter = 5 * time.Second
