package endpoints

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/controller"
)

// MostPorts is how many ports the subsets have together at most. Addresses that are in some subsets each, and no two of
// them in the same, have ports as many as their product: one object of a megabyte would fill the memory.
const MostPorts = 200_000

// who is an address as endpoints tell them apart: a pod that took the address of another is not the same.
type who struct {
	ip  string
	uid types.UID
}

// reachable is where one address is reached: by which sets of ports.
type reachable struct {
	address corev1.EndpointAddress
	ready   bool
	sets    []uint32
}

// portSets are the sets of ports that subsets have, each port by what tells it from others.
type portSets = controller.PortSets[map[string]corev1.EndpointPort]

func number(s *portSets, ports []corev1.EndpointPort) uint32 {
	set := map[string]corev1.EndpointPort{}
	for _, p := range ports {
		set[portKey(p)] = p
	}
	return uint32(s.Number(strings.Join(slices.Sorted(maps.Keys(set)), "\n"), set))
}

// union has the ports of some sets in their order, and by what they are told from others.
func union(sets []map[string]corev1.EndpointPort) ([]corev1.EndpointPort, string) {
	union := map[string]corev1.EndpointPort{}
	for _, set := range sets {
		maps.Copy(union, set)
	}
	keys := slices.Sorted(maps.Keys(union))
	var ports []corev1.EndpointPort
	for _, key := range keys {
		ports = append(ports, union[key])
	}
	return ports, strings.Join(keys, "\n")
}

// Repack is the shortest way to say the same: addresses with the same ports are in one subset, each once, in an order
// that does not depend on that of what is given. An address that is ready anywhere is. What comes to more than
// [MostPorts] is left out.
func Repack(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	sets := &portSets{}
	known := map[who]*reachable{}
	for i := range subsets {
		s := &subsets[i]
		id := number(sets, s.Ports)
		for _, a := range s.Addresses {
			add(known, a, id, true)
		}
		for _, a := range s.NotReadyAddresses {
			add(known, a, id, false)
		}
	}
	// Most addresses are in one subset, and thousands of them in the same: their ports are put together once.
	alike := map[string][]*reachable{}
	for _, r := range known {
		slices.Sort(r.sets)
		r.sets = slices.Compact(r.sets)
		key := make([]byte, 0, 4*len(r.sets))
		for _, id := range r.sets {
			key = binary.BigEndian.AppendUint32(key, id)
		}
		alike[string(key)] = append(alike[string(key)], r)
	}
	groups := map[string]*corev1.EndpointSubset{}
	left := MostPorts
	for _, key := range slices.Sorted(maps.Keys(alike)) {
		var of []map[string]corev1.EndpointPort
		for _, id := range alike[key][0].sets {
			set, _ := sets.Set(int(id))
			of = append(of, set)
			left -= len(set)
		}
		if left < 0 {
			break
		}
		ports, name := union(of)
		g := groups[name]
		if g == nil {
			g = &corev1.EndpointSubset{Ports: ports}
			groups[name] = g
		}
		for _, r := range alike[key] {
			if r.ready {
				g.Addresses = append(g.Addresses, r.address)
			} else {
				g.NotReadyAddresses = append(g.NotReadyAddresses, r.address)
			}
		}
	}
	return ordered(groups)
}

func add(known map[who]*reachable, a corev1.EndpointAddress, set uint32, ready bool) {
	key := who{ip: a.IP}
	if a.TargetRef != nil {
		key.uid = a.TargetRef.UID
	}
	r := known[key]
	if r == nil {
		r = &reachable{address: a}
		known[key] = r
	}
	r.ready = r.ready || ready
	if len(r.sets) == 0 || r.sets[len(r.sets)-1] != set {
		r.sets = append(r.sets, set)
	}
}

func ordered(groups map[string]*corev1.EndpointSubset) []corev1.EndpointSubset {
	var all []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		slices.SortFunc(groups[key].Addresses, byAddress)
		slices.SortFunc(groups[key].NotReadyAddresses, byAddress)
		all = append(all, *groups[key])
	}
	return all
}

func byAddress(a, b corev1.EndpointAddress) int {
	uid := func(a corev1.EndpointAddress) types.UID {
		if a.TargetRef == nil {
			return ""
		}
		return a.TargetRef.UID
	}
	return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(uid(a), uid(b)))
}

func portKey(p corev1.EndpointPort) string {
	app := ""
	if p.AppProtocol != nil {
		app = "/" + *p.AppProtocol
	}
	return fmt.Sprintf("%s/%s/%05d%s", p.Name, p.Protocol, p.Port, app)
}
