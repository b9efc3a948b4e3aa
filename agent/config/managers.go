package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/internal/quantity"
)

// Managers say which containers have CPUs and memory of their own. Names and values are kubelet's.
type Managers struct {
	CPUManagerPolicy             string
	CPUManagerPolicyOptions      map[string]string
	ReservedCPUs                 string // in the kernel's list format
	MemoryManagerPolicy          string
	ReservedMemory               []string // NODE:KIND=QUANTITY,...
	TopologyManagerPolicy        string
	TopologyManagerScope         string
	TopologyManagerPolicyOptions map[string]string
}

func defaultManagers() Managers {
	return Managers{
		CPUManagerPolicy: "none", MemoryManagerPolicy: "None",
		TopologyManagerPolicy: string(pinning.AlignNone), TopologyManagerScope: "container",
	}
}

// AddFlags adds the flags of the managers to fs.
func (m *Managers) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&m.CPUManagerPolicy, "cpu-manager-policy", m.CPUManagerPolicy,
		"none, or static: containers of Guaranteed pods with whole CPUs have them for themselves")
	fs.StringToStringVar(&m.CPUManagerPolicyOptions, "cpu-manager-policy-options", m.CPUManagerPolicyOptions,
		"how static chooses, OPTION=true: full-pcpus-only, distribute-cpus-across-numa, distribute-cpus-across-cores, "+
			"align-by-socket, strict-cpu-reservation, prefer-align-cpus-by-uncorecache")
	fs.StringVar(&m.ReservedCPUs, "reserved-cpus", m.ReservedCPUs,
		"CPUs kept for the node, such as 0-1,8: no container has them for itself")
	fs.StringVar(&m.MemoryManagerPolicy, "memory-manager-policy", m.MemoryManagerPolicy,
		"None, or Static: containers of Guaranteed pods have memory of the NUMA nodes they are promised")
	fs.StringArrayVar(&m.ReservedMemory, "reserved-memory", m.ReservedMemory,
		"memory kept for the node by NUMA node, such as '0:memory=1Gi,hugepages-2Mi=64Mi'; nodes are separated by ; or in "+
			"flags of their own")
	fs.StringVar(&m.TopologyManagerPolicy, "topology-manager-policy", m.TopologyManagerPolicy,
		"what to do with pods whose CPUs and memory are not of the same NUMA nodes: none, best-effort, restricted or "+
			"single-numa-node")
	fs.StringVar(&m.TopologyManagerScope, "topology-manager-scope", m.TopologyManagerScope,
		"what is to come from the same NUMA nodes: container or pod")
	fs.StringToStringVar(&m.TopologyManagerPolicyOptions, "topology-manager-policy-options",
		m.TopologyManagerPolicyOptions,
		"prefer-closest-numa-nodes=true, max-allowable-numa-nodes=N")
}

// Pinning turns the settings into what they ask for, or says what is wrong with them.
func (m *Managers) Pinning() (pinning.Config, error) {
	var out pinning.Config
	var errs []error
	oneOf := func(flag, value string, of ...string) {
		if !slices.Contains(of, value) {
			errs = append(errs, fmt.Errorf("--%s %q: must be one of %s", flag, value, strings.Join(of, ", ")))
		}
	}
	oneOf("cpu-manager-policy", m.CPUManagerPolicy, "none", "static")
	oneOf("memory-manager-policy", m.MemoryManagerPolicy, "None", "Static")
	oneOf("topology-manager-policy", m.TopologyManagerPolicy,
		string(pinning.AlignNone), string(pinning.AlignBestEffort), string(pinning.AlignRestricted), string(pinning.AlignSingleNode))
	oneOf("topology-manager-scope", m.TopologyManagerScope, "container", "pod")
	out.StaticCPUs, out.StaticMemory = m.CPUManagerPolicy == "static", m.MemoryManagerPolicy == "Static"
	out.Alignment, out.PodScope = pinning.AlignmentPolicy(m.TopologyManagerPolicy), m.TopologyManagerScope == "pod"
	var err error
	if out.Reserved, err = parseCPUs(m.ReservedCPUs); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, m.cpuOptions(&out), m.topologyOptions(&out))
	if out.ReservedMemory, err = parseReservedMemory(m.ReservedMemory); err != nil {
		errs = append(errs, fmt.Errorf("--reserved-memory: %w", err))
	}
	return out, errors.Join(errs...)
}

// parseCPUs reads --reserved-cpus, in the kernel's list format.
func parseCPUs(list string) (cpuset.CPUSet, error) {
	// cpuset makes an entry for each CPU of a range, so that a slip of a few digits would take the machine's memory.
	const digits = 5 // more than the kernel has numbers for
	for _, n := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '-' }) {
		if len(n) > digits {
			return cpuset.CPUSet{}, fmt.Errorf("--reserved-cpus %q: no machine has a CPU %s", list, n)
		}
	}
	out, err := cpuset.Parse(list)
	if err != nil {
		return out, fmt.Errorf("--reserved-cpus %q: %w", list, err)
	}
	return out, nil
}

func (m *Managers) cpuOptions(out *pinning.Config) error {
	var errs []error
	o := &out.CPU
	known := map[string]*bool{
		"full-pcpus-only": &o.FullPCPUsOnly, "distribute-cpus-across-numa": &o.DistributeAcrossNUMA,
		"distribute-cpus-across-cores": &o.DistributeAcrossCores, "align-by-socket": &o.AlignBySocket,
		"strict-cpu-reservation": &o.StrictReservation, "prefer-align-cpus-by-uncorecache": &o.PreferAlignByUncoreCache,
	}
	for name, value := range m.CPUManagerPolicyOptions {
		errs = append(errs, setOption("cpu-manager-policy-options", known, name, value))
	}
	if len(m.CPUManagerPolicyOptions) > 0 && !out.StaticCPUs {
		errs = append(errs, errors.New("--cpu-manager-policy-options are those of --cpu-manager-policy static"))
	}
	for _, both := range []struct {
		is   bool
		what string
	}{
		{o.FullPCPUsOnly && o.DistributeAcrossCores, "full-pcpus-only and distribute-cpus-across-cores"},
		{o.DistributeAcrossNUMA && o.DistributeAcrossCores, "distribute-cpus-across-numa and distribute-cpus-across-cores"},
		{
			o.PreferAlignByUncoreCache && o.DistributeAcrossCores,
			"prefer-align-cpus-by-uncorecache and distribute-cpus-across-cores",
		},
		{
			o.PreferAlignByUncoreCache && o.DistributeAcrossNUMA,
			"prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa",
		},
	} {
		if both.is {
			errs = append(errs, fmt.Errorf("--cpu-manager-policy-options: %s exclude each other", both.what))
		}
	}
	if o.AlignBySocket && out.Alignment == pinning.AlignSingleNode {
		errs = append(errs, errors.New("--cpu-manager-policy-options align-by-socket and --topology-manager-policy "+
			"single-numa-node exclude each other"))
	}
	return errors.Join(errs...)
}

func (m *Managers) topologyOptions(out *pinning.Config) error {
	var errs []error
	known := map[string]*bool{"prefer-closest-numa-nodes": &out.Closest}
	for name, value := range m.TopologyManagerPolicyOptions {
		if name != "max-allowable-numa-nodes" {
			errs = append(errs, setOption("topology-manager-policy-options", known, name, value))
			continue
		}
		n, err := strconv.Atoi(value)
		// All sets of nodes are looked at, of which there are 2 to the power of their number.
		if err != nil || n < 8 || n > 16 {
			errs = append(errs, fmt.Errorf("--topology-manager-policy-options max-allowable-numa-nodes=%s: must be a number "+
				"from 8 to 16", value))
		}
		out.MaxNodes = n
	}
	return errors.Join(errs...)
}

func setOption(flag string, known map[string]*bool, name, value string) error {
	to, ok := known[name]
	if !ok {
		return fmt.Errorf("--%s: there is no option %q", flag, name)
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("--%s %s=%s: must be true or false", flag, name, value)
	}
	*to = b
	return nil
}

// parseReservedMemory reads kubelet's "0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi".
func parseReservedMemory(flags []string) ([]pinning.NodeMemory, error) {
	var out []pinning.NodeMemory
	seen := map[int]bool{}
	for _, flag := range flags {
		for one := range strings.SplitSeq(flag, ";") {
			n, err := parseNodeMemory(one)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", one, err)
			}
			if seen[n.Node] {
				return nil, fmt.Errorf("%q: node %d was named before", one, n.Node)
			}
			seen[n.Node] = true
			out = append(out, n)
		}
	}
	return out, nil
}

func parseNodeMemory(s string) (pinning.NodeMemory, error) {
	out := pinning.NodeMemory{Limits: corev1.ResourceList{}}
	id, list, ok := strings.Cut(s, ":")
	node, err := strconv.Atoi(strings.TrimSpace(id))
	if !ok || err != nil || node < 0 {
		return out, errors.New("must be NODE:KIND=QUANTITY,...")
	}
	out.Node = node
	for one := range strings.SplitSeq(list, ",") {
		kind, value, ok := strings.Cut(strings.TrimSpace(one), "=")
		name := corev1.ResourceName(kind)
		if !ok || name != corev1.ResourceMemory && !strings.HasPrefix(kind, corev1.ResourceHugePagesPrefix) {
			return out, fmt.Errorf("%q: must be memory=QUANTITY or hugepages-SIZE=QUANTITY", one)
		}
		q, err := quantity.Parse(value)
		if err != nil {
			return out, fmt.Errorf("%.80q: must be a quantity above 0: %w", one, err)
		}
		if q.Sign() <= 0 {
			return out, fmt.Errorf("%.80q: must be a quantity above 0", one)
		}
		if _, twice := out.Limits[name]; twice {
			return out, fmt.Errorf("%s was named before", name)
		}
		out.Limits[name] = q
	}
	return out, nil
}
