// Package plain says which containers are ordinary. Those the keeper starts in C, without libcontainer, which stays the
// way of all others.
//
// [Of] takes a specification apart field by field, and refuses what it does not know to be the same both ways. What a
// specification may say one day, and what nobody has thought of here, is refused too: what is known is taken away, and
// the rest has to be empty.
package plain

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

// Start is all that an ordinary container is made of.
type Start struct {
	Root      string
	ReadOnly  bool
	Join      []Namespace
	Mounts    []Mount
	Trees     []Tree // that are shown where the groups are mounted
	Masked    []string
	ReadPaths []string // that are to be read-only
	Process   *specs.Process
	Seccomp   []byte   // the compiled filter, from [Start.Prepare]
	Procs     []string // cgroup.procs files it joins

	group     string
	scope     *scope // that the group is, where it is one
	machine   Machine
	resources *specs.LinuxResources
}

// Namespace is one that the container joins, and one of groups that is made for it, which has no path.
type Namespace struct {
	Flag uint32 // CLONE_NEW*
	Path string
}

// Tree is the container's group in one hierarchy, and its name among the others.
type Tree struct{ Name, Dir string }

// Machine is what matters of the machine.
type Machine struct {
	Mode  cgroups.Mode
	Trees []cgroups.Tree

	guard  *guard
	scopes *Scopes // where groups of containers are scopes of systemd
}

// MachineOf is the machine with these groups.
func MachineOf(h *cgroups.Hierarchy) Machine {
	return Machine{Mode: h.Mode(), Trees: h.Trees(), guard: &guard{}}
}

func (m Machine) unified() bool { return m.Mode == cgroups.Unified }

// refused says why a container is not ordinary.
func refused(format string, args ...any) error { return fmt.Errorf("not ordinary: "+format, args...) }

// Of returns the start of a container that is ordinary, or why it is not.
func Of(spec *specs.Spec, m Machine) (*Start, error) {
	if spec.Process == nil || spec.Root == nil || spec.Linux == nil {
		return nil, refused("it has no process, root or Linux")
	}
	s := &Start{Process: spec.Process}
	for _, check := range []func(*Start, *specs.Spec, Machine) error{
		known, root, namespaces, process, privileges, confinement, mounts, groups,
	} {
		if err := check(s, spec, m); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// known refuses all fields that nobody looks at below.
func known(_ *Start, spec *specs.Spec, _ Machine) error {
	s, p, l, u := *spec, *spec.Process, *spec.Linux, spec.Process.User
	s.Version, s.Process, s.Root, s.Mounts, s.Annotations, s.Linux = "", nil, nil, nil, nil, nil
	p.Terminal, p.ConsoleSize, p.Args, p.Env, p.Cwd, p.Capabilities = false, nil, nil, nil, "", nil
	p.Rlimits, p.NoNewPrivileges, p.OOMScoreAdj, p.User = nil, false, nil, specs.User{}
	u.UID, u.GID, u.Umask, u.AdditionalGids = 0, 0, nil, nil
	l.Resources, l.CgroupsPath, l.Namespaces, l.Seccomp, l.MaskedPaths, l.ReadonlyPaths = nil, "", nil, nil, nil, nil
	for _, rest := range []any{s, p, u, l} {
		if name := something(rest); name != "" {
			return refused("%T has %s", rest, name)
		}
	}
	return nil
}

// something is a field that is not empty, "" when there is none.
func something(v any) string {
	r := reflect.ValueOf(v)
	for i := range r.NumField() {
		if !r.Field(i).IsZero() {
			return r.Type().Field(i).Name
		}
	}
	return ""
}

func root(s *Start, spec *specs.Spec, _ Machine) error {
	rest := *spec.Root
	rest.Path, rest.Readonly = "", false
	if name := something(rest); name != "" {
		return refused("root has %s", name)
	}
	if !path.IsAbs(spec.Root.Path) || path.Clean(spec.Root.Path) != spec.Root.Path || spec.Root.Path == "/" {
		return refused("root %q", spec.Root.Path)
	}
	s.Root, s.ReadOnly = spec.Root.Path, spec.Root.Readonly
	return nil
}

// namespaces: mounts and processes are the container's own, and others those of its pod. Of groups it may have one of
// its own on v2.
func namespaces(s *Start, spec *specs.Spec, m Machine) error {
	own := map[specs.LinuxNamespaceType]bool{}
	joined := map[specs.LinuxNamespaceType]uint32{
		specs.NetworkNamespace: unix.CLONE_NEWNET, specs.IPCNamespace: unix.CLONE_NEWIPC, specs.UTSNamespace: unix.CLONE_NEWUTS,
	}
	for _, ns := range spec.Linux.Namespaces {
		flag, join := joined[ns.Type]
		switch {
		case own[ns.Type]:
			return refused("two namespaces of kind %s", ns.Type)
		case join && path.IsAbs(ns.Path):
			s.Join = append(s.Join, Namespace{flag, ns.Path})
		case ns.Type == specs.CgroupNamespace && ns.Path == "" && m.unified():
			s.Join = append(s.Join, Namespace{Flag: unix.CLONE_NEWCGROUP})
		case ns.Path != "" || ns.Type != specs.MountNamespace && ns.Type != specs.PIDNamespace:
			return refused("namespace of kind %s at %q", ns.Type, ns.Path)
		}
		own[ns.Type] = true
	}
	if !own[specs.MountNamespace] || !own[specs.PIDNamespace] {
		return refused("namespaces of mounts and processes that are not its own")
	}
	return nil
}

func process(_ *Start, spec *specs.Spec, _ Machine) error {
	p := spec.Process
	switch {
	case len(p.Args) == 0 || p.Args[0] == "":
		return refused("no program")
	case !cleanPath(p.Cwd) && p.Cwd != "/":
		return refused("working directory %q", p.Cwd)
	case p.ConsoleSize != nil && (p.ConsoleSize.Width == 0 || p.ConsoleSize.Height == 0 || !p.Terminal):
		return refused("half a size of a console")
	}
	for _, e := range p.Env {
		if strings.Index(e, "=") < 1 || strings.IndexByte(e, 0) >= 0 {
			return refused("environment %q", e)
		}
		// Go does not execute what it finds by such a part of it, and looks no further.
		if dirs, is := strings.CutPrefix(e, "PATH="); is && dirs != "" && !absolute(strings.Split(dirs, ":")) {
			return refused("search for programs in %q", dirs)
		}
	}
	return nil
}

// ownGroups says whether the container has a namespace of groups.
func (s *Start) ownGroups() bool {
	return slices.ContainsFunc(s.Join, func(n Namespace) bool { return n.Flag == unix.CLONE_NEWCGROUP })
}

func absolute(dirs []string) bool {
	return !slices.ContainsFunc(dirs, func(d string) bool { return !path.IsAbs(d) })
}

func privileges(_ *Start, spec *specs.Spec, _ Machine) error {
	c := spec.Process.Capabilities
	if c == nil {
		return refused("no word on capabilities")
	}
	// libcontainer knows them by their names in capitals only.
	for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		if slices.ContainsFunc(set, func(n string) bool { return !strings.HasPrefix(n, "CAP_") || strings.ToUpper(n) != n }) {
			return refused("capabilities %q", set)
		}
	}
	seen := map[string]bool{}
	for _, r := range spec.Process.Rlimits {
		if seen[r.Type] {
			return refused("two limits %s", r.Type)
		}
		seen[r.Type] = true
	}
	return nil
}

func confinement(s *Start, spec *specs.Spec, _ Machine) error {
	if p := spec.Linux.Seccomp; p != nil && notifies(p) {
		return refused("a seccomp profile with an agent")
	}
	for _, list := range []struct {
		from []string
		to   *[]string
	}{{spec.Linux.MaskedPaths, &s.Masked}, {spec.Linux.ReadonlyPaths, &s.ReadPaths}} {
		for _, p := range list.from {
			if !cleanPath(p) || within(p, "/dev") {
				return refused("masked or read-only path %q", p)
			}
			if !slices.Contains(*list.to, p) {
				*list.to = append(*list.to, p)
			}
		}
		if len(*list.to) > maxPaths {
			return refused("%d masked or read-only paths", len(*list.to))
		}
	}
	return nil
}

// maxPaths is as many as the keeper takes of each kind.
const maxPaths = 1024

func notifies(p *specs.LinuxSeccomp) bool {
	return p.ListenerPath != "" || p.DefaultAction == specs.ActNotify || slices.ContainsFunc(p.Syscalls, func(s specs.LinuxSyscall) bool {
		return s.Action == specs.ActNotify
	})
}

// cleanPath says whether a path is absolute, below the root, and says each directory once.
func cleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/" && len(p) < unix.PathMax && strings.IndexByte(p, 0) < 0
}

// within says whether a clean path is another, or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

var errNoFilter = errors.New("not ordinary: its seccomp profile was never compiled")
