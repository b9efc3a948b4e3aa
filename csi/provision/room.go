package provision

import (
	"context"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// accessible is where a volume has to be reached from; nil: the driver has it anywhere.
func accessible(d *csi.Driver) []*spec.Topology {
	if !d.Service(spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS) || len(d.Topology) == 0 {
		return nil
	}
	return []*spec.Topology{{Segments: d.Topology}}
}

// allowed says why no volume of a class may be made for this node, which is where the driver says, and has labels.
func allowed(terms []map[string][]string, topology, labels map[string]string) error {
	if len(terms) == 0 {
		return nil
	}
	why := ""
	for _, term := range terms {
		fits := true
		for key, values := range term {
			is, known := topology[key]
			if !known {
				is = labels[key]
			}
			if !slices.Contains(values, is) {
				fits, why = false, fmt.Sprintf("%s is %q here, and not one of %q", csi.Text(key), is, values)
			}
		}
		if fits {
			return nil
		}
	}
	return fmt.Errorf("its class allows no volumes on this node (allowedTopologies): %s", why)
}

// room adds to what a driver says that has no room for a volume how much it has, where it tells. It is not asked
// before: it may have made the volume already, and has it by the name then, however full it is.
func (a acts) room(ctx context.Context, d *csi.Driver, r *record, err error) error {
	full := csi.CodeOf(err) == codes.ResourceExhausted || csi.CodeOf(err) == codes.OutOfRange
	if r.Kind != Volume || !full || !d.Controller(spec.ControllerServiceCapability_RPC_GET_CAPACITY) {
		return err
	}
	request := &spec.GetCapacityRequest{VolumeCapabilities: capabilities(&r.Claim, d), Parameters: r.Parameters}
	if here := accessible(d); here != nil {
		request.AccessibleTopology = here[0]
	}
	answer, unknown := d.Client().Controller().GetCapacity(ctx, request)
	if unknown != nil {
		return err
	}
	if most := answer.GetMaximumVolumeSize(); most.GetValue() > 0 && most.GetValue() < answer.GetAvailableCapacity() {
		return fmt.Errorf("%w (a volume has at most %d bytes there, and %d are asked for)", err, most.GetValue(), r.Claim.Bytes)
	}
	return fmt.Errorf("%w (it has %d bytes left, and %d are asked for)", err, answer.GetAvailableCapacity(), r.Claim.Bytes)
}
