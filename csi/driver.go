package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// nodeVolumeCondition is VOLUME_CONDITION, which the specification has had until version 1.12.
const nodeVolumeCondition spec.NodeServiceCapability_RPC_Type = 4

// Driver is a driver that is registered, as it was when it was asked last. It never changes; a newer answer replaces
// it.
type Driver struct {
	Name     string
	Endpoint string
	Vendor   string // the version that it says it has
	// NodeID is what it knows this node by; Topology where that is; MaxVolumes how many volumes it can have here, 0: it
	// does not say.
	NodeID     string
	Topology   map[string]string
	MaxVolumes int64

	client     *Client
	node       map[spec.NodeServiceCapability_RPC_Type]bool
	controller map[spec.ControllerServiceCapability_RPC_Type]bool
	groups     map[spec.GroupControllerServiceCapability_RPC_Type]bool
	services   map[spec.PluginCapability_Service_Type]bool
	expansion  map[spec.PluginCapability_VolumeExpansion_Type]bool
}

// Client calls the driver.
func (d *Driver) Client() *Client { return d.client }

// Node says whether its node service has a capability.
func (d *Driver) Node(c spec.NodeServiceCapability_RPC_Type) bool { return d.node[c] }

// Condition says whether the driver tells of a volume's condition with its statistics, as until version 1.12 of the
// specification.
func (d *Driver) Condition() bool { return d.node[nodeVolumeCondition] }

// Controller says whether its controller service, on the same socket, has a capability.
func (d *Driver) Controller(c spec.ControllerServiceCapability_RPC_Type) bool { return d.controller[c] }

// Groups says whether its service for groups of volumes, on the same socket, has a capability.
func (d *Driver) Groups(c spec.GroupControllerServiceCapability_RPC_Type) bool { return d.groups[c] }

// Service says whether it has a service, or a trait that services have.
func (d *Driver) Service(c spec.PluginCapability_Service_Type) bool { return d.services[c] }

// Expansion says how it can expand volumes.
func (d *Driver) Expansion(c spec.PluginCapability_VolumeExpansion_Type) bool { return d.expansion[c] }

// Capabilities are the names of all that it can do, by service, for people.
func (d *Driver) Capabilities() map[string][]string {
	out := map[string][]string{"node": names(d.node), "controller": names(d.controller), "plugin": names(d.services)}
	out["expansion"], out["group"] = names(d.expansion), names(d.groups)
	return out
}

// names are those of what a driver has of an enumeration, in order.
func names[T interface {
	~int32
	String() string
}](has map[T]bool) []string {
	out := make([]string, 0, len(has))
	for _, v := range slices.Sorted(maps.Keys(has)) {
		out = append(out, v.String())
	}
	return out
}

// Bounds of what a driver says about itself, in bytes (the specification's "Size Limits", and those of GetPluginInfo
// and NodeGetInfo).
const (
	maxName     = 63
	maxNodeID   = 256
	maxSegments = 4 << 10
)

// maxKind bounds the numbers of an enumeration of the specification, with room for those to come: of what is beyond no
// driver has that many things that it can do.
const maxKind = 256

func add[T ~int32](to map[T]bool, kind T) {
	if kind >= 0 && kind < maxKind {
		to[kind] = true
	}
}

// CheckName says why no driver can have that name: it becomes a part of paths, and is a domain name by the
// specification.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("name %q of a CSI driver: must have 1 to %d characters", Text(name), maxName)
	}
	for part := range strings.SplitSeq(name, ".") {
		bad := strings.ContainsFunc(part, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
		})
		if part == "" || bad || part[0] == '-' || part[len(part)-1] == '-' {
			return fmt.Errorf("name %q of a CSI driver: must be a domain name", Text(name))
		}
	}
	return nil
}

// checkVersions says why a registrar's driver is not spoken to: version 1 of the specification is the only one.
func checkVersions(versions []string) error {
	for _, v := range versions {
		major, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n == 1 {
			return nil
		}
	}
	return fmt.Errorf("versions %q of the CSI specification are not spoken here: it must have one of 1.x", bounded(versions))
}

func bounded(list []string) []string {
	out := make([]string, 0, min(len(list), 8))
	for _, s := range list[:min(len(list), 8)] {
		out = append(out, Text(s))
	}
	return out
}

// nameOf asks who a driver is.
func nameOf(ctx context.Context, c *Client) (name, vendor string, err error) {
	info, err := c.Identity().GetPluginInfo(ctx, &spec.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", "", err
	}
	if err := CheckName(info.GetName()); err != nil {
		return "", "", err
	}
	return info.GetName(), Text(info.GetVendorVersion()), nil
}

// ask has a driver say what it can do; name is what it must be called.
func ask(ctx context.Context, name, endpoint string, c *Client) (*Driver, error) {
	is, vendor, err := nameOf(ctx, c)
	if err != nil {
		return nil, err
	}
	if is != name {
		return nil, fmt.Errorf("it is registered as %s, and says that it is %s", name, is)
	}
	d := &Driver{Name: name, Endpoint: endpoint, Vendor: vendor, client: c}
	probe, err := c.Identity().Probe(ctx, &spec.ProbeRequest{})
	switch {
	case CodeOf(err) == codes.Unimplemented: // many drivers, though the specification wants it
	case err != nil:
		return nil, err
	case probe.GetReady() != nil && !probe.GetReady().GetValue():
		return nil, errors.New("it is not ready yet")
	}
	if err := d.askPlugin(ctx); err != nil {
		return nil, err
	}
	return d, d.askNode(ctx)
}

func (d *Driver) askPlugin(ctx context.Context) error {
	answer, err := d.client.Identity().GetPluginCapabilities(ctx, &spec.GetPluginCapabilitiesRequest{})
	if err != nil {
		return err
	}
	d.services = map[spec.PluginCapability_Service_Type]bool{}
	d.expansion = map[spec.PluginCapability_VolumeExpansion_Type]bool{}
	for _, c := range answer.GetCapabilities() {
		if s := c.GetService(); s != nil {
			add(d.services, s.GetType())
		}
		if e := c.GetVolumeExpansion(); e != nil {
			add(d.expansion, e.GetType())
		}
	}
	if err := d.askGroups(ctx); err != nil {
		return err
	}
	d.controller = map[spec.ControllerServiceCapability_RPC_Type]bool{}
	if !d.services[spec.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	can, err := d.client.Controller().ControllerGetCapabilities(ctx, &spec.ControllerGetCapabilitiesRequest{})
	if CodeOf(err) == codes.Unimplemented { // it has the service elsewhere, in a cluster mostly
		delete(d.services, spec.PluginCapability_Service_CONTROLLER_SERVICE)
		return nil
	}
	for _, c := range can.GetCapabilities() {
		add(d.controller, c.GetRpc().GetType())
	}
	return err
}

func (d *Driver) askGroups(ctx context.Context) error {
	d.groups = map[spec.GroupControllerServiceCapability_RPC_Type]bool{}
	if !d.services[spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		return nil
	}
	can, err := d.client.GroupController().GroupControllerGetCapabilities(ctx, &spec.GroupControllerGetCapabilitiesRequest{})
	if CodeOf(err) == codes.Unimplemented { // it has the service elsewhere, as that of its controller
		delete(d.services, spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
		return nil
	}
	for _, c := range can.GetCapabilities() {
		add(d.groups, c.GetRpc().GetType())
	}
	return err
}

func (d *Driver) askNode(ctx context.Context) error {
	can, err := d.client.Node().NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	d.node = map[spec.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range can.GetCapabilities() {
		add(d.node, c.GetRpc().GetType())
	}
	info, err := d.client.Node().NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	if err != nil {
		return err
	}
	return d.take(info)
}

// take reads what a driver says of the node. It may say anything.
func (d *Driver) take(info *spec.NodeGetInfoResponse) error {
	d.NodeID, d.MaxVolumes = info.GetNodeId(), info.GetMaxVolumesPerNode()
	d.Topology = maps.Clone(info.GetAccessibleTopology().GetSegments())
	size := 0
	for k, v := range d.Topology {
		size += len(k) + len(v)
	}
	switch {
	case d.NodeID == "" || len(d.NodeID) > maxNodeID:
		return fmt.Errorf("NodeGetInfo: node_id must have 1 to %d bytes, and has %d", maxNodeID, len(d.NodeID))
	case d.MaxVolumes < 0:
		return fmt.Errorf("NodeGetInfo: max_volumes_per_node is %d", d.MaxVolumes)
	case size > maxSegments:
		return fmt.Errorf("NodeGetInfo: accessible_topology has more than %d bytes", maxSegments)
	}
	return nil
}
