package nri

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/containerd/nri/pkg/api"
	nrigen "github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Limits are what the machine lets a plugin do.
type Limits struct {
	OOMScoreAdjMin int
	Swap           bool // is accounted
	InjectCDI      func(*specs.Spec, []string) error
	BlockIO        func(class string) (*specs.LinuxBlockIO, error)
	RDT            func(class string) (*specs.LinuxIntelRdt, error)
	RDTReady       func() error // says what is missing for RDT
}

// Adjust does to a container's specification what plugins ask for. What this runtime cannot do is an error, and the
// container is not created: a plugin that asked for it counts on it.
func Adjust(s *specs.Spec, a *api.ContainerAdjustment, l Limits) error {
	if a == nil {
		return nil
	}
	if err := check(s, a, l); err != nil {
		return fmt.Errorf("adjust container as plugins ask: %w", err)
	}
	// The library only adds to limits there are, and has no way to take memory and swap apart.
	for _, r := range a.GetRlimits() {
		s.Process.Rlimits = without(s.Process.Rlimits, func(have specs.POSIXRlimit) bool { return have.Type == r.GetType() })
	}
	if err := nrigen.SpecGenerator(newEditor(s), nrigen.WithCDIDeviceInjector(l.InjectCDI), nrigen.WithBlockIOResolver(l.BlockIO), nrigen.WithRdtResolver(l.RDT)).Adjust(a); err != nil {
		return fmt.Errorf("adjust container as plugins ask: %w", err)
	}
	// Which the library leaves out.
	if m := a.GetLinux().GetResources().GetMemory(); m != nil {
		memory(s, m)
	}
	if m := s.Linux.Resources.Memory; m != nil && !l.Swap {
		m.Swap = nil
	}
	if p := a.GetLinux().GetSeccompPolicy(); p != nil {
		s.Linux.Seccomp.DefaultErrnoRet = errnoOf(p)
	}
	return nil
}

// Remove takes out of a specification the variables, mounts and devices that plugins have removed. The library does not
// say which, but what it has asked the last plugin about does not have them any more.
func Remove(s *specs.Spec, last *api.Container) {
	env, mounts, devices := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, kv := range last.GetEnv() {
		env[nameOf(kv)] = true
	}
	for _, m := range last.GetMounts() {
		mounts[m.GetDestination()] = true
	}
	for _, d := range last.GetLinux().GetDevices() {
		devices[d.GetPath()] = true
	}
	s.Process.Env = without(s.Process.Env, func(kv string) bool { return !env[nameOf(kv)] })
	s.Mounts = without(s.Mounts, func(m specs.Mount) bool { return !mounts[m.Destination] })
	s.Linux.Devices = without(s.Linux.Devices, func(d specs.LinuxDevice) bool { return !devices[d.Path] })
}

func nameOf(kv string) string {
	name, _, _ := strings.Cut(kv, "=")
	return name
}

func errnoOf(p *api.LinuxSeccomp) *uint {
	v := p.GetDefaultErrno().Get()
	if v == nil {
		return nil
	}
	n := uint(*v)
	return &n
}

// memory sets what the library does not: it knows the limit only, and takes it for that of memory and swap too.
func memory(s *specs.Spec, m *api.LinuxMemory) {
	if s.Linux.Resources.Memory == nil {
		s.Linux.Resources.Memory = &specs.LinuxMemory{}
	}
	to := s.Linux.Resources.Memory
	if v := m.GetReservation().Get(); v != nil {
		to.Reservation = v
	}
	if v := m.GetSwap().Get(); v != nil {
		to.Swap = v
	}
	if v := m.GetSwappiness().Get(); v != nil {
		to.Swappiness = v
	}
	if v := m.GetDisableOomKiller().Get(); v != nil {
		to.DisableOOMKiller = v
	}
}

func check(s *specs.Spec, a *api.ContainerAdjustment, l Limits) error {
	linux := a.GetLinux()
	var errs []error
	if v := linux.GetOomScoreAdj().Get(); v != nil && *v < l.OOMScoreAdjMin {
		errs = append(errs, fmt.Errorf("oom_score_adj %d: this process can set none below %d", *v, l.OOMScoreAdjMin))
	}
	if p := linux.GetCgroupsPath(); p != "" && p != s.Linux.CgroupsPath && (!path.IsAbs(p) || path.Clean(p) != p || p == "/") {
		errs = append(errs, fmt.Errorf("cgroups path %q: must be a clean path that begins with /", p))
	}
	if linux.GetSeccompPolicy().GetListenerPath() != "" {
		errs = append(errs, errors.New("seccomp policy: notifications to a listener are not supported"))
	}
	if r := linux.GetRdt(); r.GetClosId() != nil || r.GetSchemata() != nil || r.GetEnableMonitoring().GetValue() {
		if err := l.RDTReady(); err != nil {
			errs = append(errs, fmt.Errorf("RDT: %w", err))
		}
	}
	errs = append(errs, checkResources(linux.GetResources()))
	return errors.Join(errs...)
}

// checkResources refuses what the kernel has given up.
func checkResources(r *api.LinuxResources) error {
	if m := r.GetMemory(); m.GetKernel() != nil || m.GetKernelTcp() != nil {
		return errors.New("limits of kernel memory are not supported")
	}
	return nil
}
