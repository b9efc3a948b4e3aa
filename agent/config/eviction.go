package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

// Eviction is when pods are evicted, by kubelet's settings and some of ours.
type Eviction struct {
	Hard          string // SIGNAL<VALUE,... ; of it memory and disk are no pod's to ask for
	MergeDefaults bool
	Soft          string
	SoftGrace     map[string]string
	MinReclaim    map[string]string
	Transition    time.Duration
	MaxPodGrace   int64 // seconds

	MemoryAvailable string // MemoryKernel or MemoryKubelet
	OOMPolicy       string // OOMKernel or OOMEarly
}

// How the memory that is available is read.
const (
	MemoryKernel  = "kernel"
	MemoryKubelet = "kubelet"
)

// Who ends what when memory is short and nothing moves.
const (
	OOMKernel = "kernel"
	OOMEarly  = "early"
)

// defaultEviction is kubelet's.
func defaultEviction() Eviction {
	return Eviction{
		Hard:       "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%",
		Transition: 5 * time.Minute, MemoryAvailable: MemoryKernel, OOMPolicy: OOMKernel,
	}
}

// AddFlags adds the flags to fs.
func (e *Eviction) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.Hard, "eviction-hard", e.Hard, "below what pods are evicted at once, as SIGNAL<QUANTITY or SIGNAL<PERCENTAGE, such as memory.available<100Mi,nodefs.available<10%; what it says of memory and of the node's disk is not the pods' to ask for (empty: none)")
	fs.BoolVar(&e.MergeDefaults, "merge-default-eviction-settings", e.MergeDefaults, "signals that --eviction-hard does not name have their defaults")
	fs.StringVar(&e.Soft, "eviction-soft", e.Soft, "below what pods are evicted with time to end, once it has been so for the signal's grace period, as SIGNAL<QUANTITY")
	fs.StringToStringVar(&e.SoftGrace, "eviction-soft-grace-period", e.SoftGrace, "for how long, as SIGNAL=DURATION: each signal of --eviction-soft needs one")
	fs.StringToStringVar(&e.MinReclaim, "eviction-minimum-reclaim", e.MinReclaim, "how much more than the threshold there is to be before it is enough, as SIGNAL=QUANTITY")
	fs.DurationVar(&e.Transition, "eviction-pressure-transition-period", e.Transition, "for how long MemoryPressure, DiskPressure and PIDPressure hold after the pressure has eased")
	fs.Int64Var(&e.MaxPodGrace, "eviction-max-pod-grace-period", e.MaxPodGrace, "seconds that a pod has to end at most, for the sake of a soft threshold (negative: what it asks for)")
	fs.StringVar(&e.MemoryAvailable, "memory-available", e.MemoryAvailable, "what memory.available is: kernel, its estimate MemAvailable and what pods may swap (--swap-behavior), or kubelet, which takes active file cache for taken and counts no swap")
	fs.StringVar(&e.OOMPolicy, "oom-policy", e.OOMPolicy, "kernel, or early: when all have stood still for want of memory for a while, the pod with the least claim to it ends, before the machine stalls")
}

// settings are eviction's own words for it. allocatable says that all pods together are limited.
func (e *Eviction) settings(allocatable bool) (threshold.Settings, error) {
	hard, err1 := threshold.ParseHard(e.Hard)
	soft, err2 := threshold.ParseSoft(e.Soft)
	return threshold.Settings{
		Hard: hard, Soft: soft, SoftGrace: e.SoftGrace, MinReclaim: e.MinReclaim, MergeDefaults: e.MergeDefaults,
		EnforceAllocatable: allocatable, Transition: e.Transition, MaxPodGrace: e.MaxPodGrace,
	}, errors.Join(err1, err2)
}

// policy is what the settings come to.
func (e *Eviction) policy(allocatable bool) (threshold.Policy, error) {
	s, err := e.settings(allocatable)
	if err != nil {
		return threshold.Policy{}, err
	}
	return s.Policy()
}

// EvictionPolicy is when pods are evicted.
func (r *Resources) EvictionPolicy() (threshold.Policy, error) {
	return r.Evict.policy(r.Enforces(EnforcePods))
}

// complete says what is wrong with the settings.
func (e *Eviction) complete() error {
	_, err := e.policy(false)
	for _, one := range []struct {
		flag, value string
		allowed     []string
	}{
		{"memory-available", e.MemoryAvailable, []string{MemoryKernel, MemoryKubelet}},
		{"oom-policy", e.OOMPolicy, []string{OOMKernel, OOMEarly}},
	} {
		err = errors.Join(err, oneOf(one.flag, one.value, one.allowed))
	}
	return err
}

func oneOf(flag, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("--%s %q: must be one of %s", flag, value, strings.Join(allowed, ", "))
}

// reserved is what the hard thresholds keep free of a capacity, which is no pod's to ask for, as by kubelet.
func (e *Eviction) reserved(capacity corev1.ResourceList) (corev1.ResourceList, error) {
	p, err := e.policy(false)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{}
	for _, t := range p.Thresholds {
		if t.Soft || t.Signal != signal.MemoryAvailable && t.Signal != signal.NodeFsAvailable {
			continue
		}
		name := t.Signal.Resource()
		have := capacity[name]
		out[name] = *newBytes(t.At(have.Value()))
	}
	return out, nil
}
