// Package metrics turns what pods and containers use into the metrics of the CRI, under the names and with the labels
// that kubelet has from cAdvisor. It is pure: who measures hands the measures in.
package metrics

import (
	"slices"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// Labels say what a metric is about.
type Labels struct {
	Container string // "POD" for the pod itself
	ID        string
	Image     string
	Namespace string
	Pod       string
}

// sandbox is the name that the pod itself has among its containers, since the days of pause containers.
const sandbox = "POD"

var baseKeys = []string{"container", "id", "image", "namespace", "pod"}

func (l Labels) values() []string { return []string{l.Container, l.ID, l.Image, l.Namespace, l.Pod} }

// Container is what one container uses.
type Container struct {
	Labels
	Seen, Started time.Time
	Usage         cgroups.Usage
	Detail        cgroups.Detail
	Processes     Processes
	Filesystem    Filesystem
	Name          func(major, minor uint32) string // of a block device
}

// Processes is what the processes of a container have open.
type Processes struct {
	Count, Files, Sockets uint64
	OpenFilesLimit        uint64 // the first process's soft limit
}

// Filesystem is where the container's writable layer is.
type Filesystem struct {
	Known                          bool
	Device                         string
	Used, Size, Inodes, FreeInodes uint64 // bytes and inodes
}

// Interface is what went over one network interface of a pod.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// Machine is what of the machine decides which metrics there are at all.
type Machine struct {
	Hugepages bool // groups have files of the hugetlb controller
	Pressure  bool // the kernel keeps pressure for groups
}

// value is a number with the values of the labels that its family has beside the base labels.
type value struct {
	n      uint64
	labels []string
}

// family is all metrics of one name.
type family[T any] struct {
	name, help string
	kind       runtimeapi.MetricType
	labels     []string
	values     func(*T) []value
	needs      func(Machine) bool // nil: nothing
}

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// Descriptors are those of all metrics of this machine.
func Descriptors(m Machine) []*runtimeapi.MetricDescriptor {
	return slices.Concat(describe(containerFamilies(), m), describe(podFamilies(), m))
}

func describe[T any](families []family[T], m Machine) []*runtimeapi.MetricDescriptor {
	var out []*runtimeapi.MetricDescriptor
	for _, f := range families {
		if f.needs == nil || f.needs(m) {
			out = append(out, &runtimeapi.MetricDescriptor{Name: f.name, Help: f.help, LabelKeys: slices.Concat(baseKeys, f.labels)})
		}
	}
	return out
}

// OfContainer are the metrics of a container.
func OfContainer(c *Container) []*runtimeapi.Metric {
	return measure(containerFamilies(), c, c.Labels, c.Usage.Time)
}

// OfPod are the metrics of a pod itself: those of its network, which its containers share.
func OfPod(l Labels, interfaces []Interface, at time.Time) []*runtimeapi.Metric {
	l.Container = sandbox
	return measure(podFamilies(), &interfaces, l, at)
}

func measure[T any](families []family[T], from *T, l Labels, at time.Time) []*runtimeapi.Metric {
	base := l.values()
	out := make([]*runtimeapi.Metric, 0, len(families))
	for _, f := range families {
		for _, v := range f.values(from) {
			labels := base
			if len(v.labels) > 0 {
				labels = slices.Concat(base, v.labels)
			}
			out = append(out, &runtimeapi.Metric{
				Name: f.name, Timestamp: at.UnixNano(), MetricType: f.kind, LabelValues: labels, Value: &runtimeapi.UInt64Value{Value: v.n},
			})
		}
	}
	return out
}

func podFamilies() []family[[]Interface] {
	net := func(name, help string, pick func(*Interface) uint64) family[[]Interface] {
		return family[[]Interface]{name: "container_network_" + name, help: help, kind: counter, labels: []string{"interface"}, values: func(all *[]Interface) []value {
			var out []value
			for _, i := range *all {
				out = append(out, value{pick(&i), []string{i.Name}})
			}
			return out
		}}
	}
	return []family[[]Interface]{
		net("receive_bytes_total", "Cumulative count of bytes received", func(i *Interface) uint64 { return i.RxBytes }),
		net("receive_packets_total", "Cumulative count of packets received", func(i *Interface) uint64 { return i.RxPackets }),
		net("receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", func(i *Interface) uint64 { return i.RxDropped }),
		net("receive_errors_total", "Cumulative count of errors encountered while receiving", func(i *Interface) uint64 { return i.RxErrors }),
		net("transmit_bytes_total", "Cumulative count of bytes transmitted", func(i *Interface) uint64 { return i.TxBytes }),
		net("transmit_packets_total", "Cumulative count of packets transmitted", func(i *Interface) uint64 { return i.TxPackets }),
		net("transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", func(i *Interface) uint64 { return i.TxDropped }),
		net("transmit_errors_total", "Cumulative count of errors encountered while transmitting", func(i *Interface) uint64 { return i.TxErrors }),
	}
}

// one is a family with one value of each container.
func one(name, help string, kind runtimeapi.MetricType, pick func(*Container) uint64) family[Container] {
	return family[Container]{name: name, help: help, kind: kind, values: func(c *Container) []value { return []value{{n: pick(c)}} }}
}

// limit is 0 for a limit that is not there: that is how such metrics say it.
func limit(n uint64) uint64 {
	if n == cgroups.NoLimit {
		return 0
	}
	return n
}

// The CRI's metrics are whole numbers: fractions of a second are left out.

func secondsOf(ns uint64) uint64 { return ns / uint64(time.Second) }

func unixOf(t time.Time) uint64 {
	if t.IsZero() || t.Unix() < 0 {
		return 0
	}
	return uint64(t.Unix())
}

func deviceNumber(major, minor uint32) string {
	return strconv.FormatUint(uint64(major), 10) + ":" + strconv.FormatUint(uint64(minor), 10)
}
