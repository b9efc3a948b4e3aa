package plain

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	lib "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	units "github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups/systemd"
)

// Scopes is how groups are made where they are scopes of systemd. One begins with a process, and ends as soon as it has
// none, so somebody holds it until the container's first process is born there.
type Scopes struct {
	Systemd Systemd
	Hold    func() (Holder, error)
}

// Systemd is the part of [systemd.Driver] that makes scopes.
type Systemd interface {
	Version() int
	MakeScope(group string, props []dbus.Property) error
	StopScope(group string) error
	Settle() error
}

// Holder is a process that does nothing until it is closed.
type Holder interface {
	Pid() int
	Close() error
}

// WithScopes is the machine whose groups of containers are scopes of systemd.
func (m Machine) WithScopes(s Scopes) Machine {
	m.scopes = &s
	return m
}

// scope is the unit that a container's group is.
type scope struct {
	slice, name, unit string
	properties        []dbus.Property // beyond its limits
	holder            Holder
}

// knownVersion has systemd understand all that scopes are told.
const knownVersion = 244

// collected has systemd forget a scope that has failed, and is what the agent says of all its scopes.
const (
	propertyPrefix  = "org.systemd.property."
	collected       = "CollectMode"
	collectedAlways = "inactive-or-failed"
)

// fewest processes that a group may be limited to: who holds it is one of them, for as long as the container starts.
const fewest = 64

// unitGroup reads the group of a container, which is "slice:prefix:name" where it is a scope.
func unitGroup(spec *specs.Spec, m Machine) (group string, _ *scope, _ error) {
	group = spec.Linux.CgroupsPath
	if m.scopes == nil {
		if !cleanPath(group) {
			return "", nil, refused("group %q", group)
		}
		return group, nil, nil
	}
	parts := strings.Split(group, ":")
	if !m.unified() || len(parts) != 3 || parts[1] == "" || parts[2] == "" || strings.HasSuffix(parts[2], ".slice") ||
		strings.Contains(group, "/") {
		return "", nil, refused("scope %q", group)
	}
	if v := m.scopes.Systemd.Version(); v < knownVersion {
		return "", nil, refused("a scope of systemd %d", v)
	}
	dir, err := units.ExpandSlice(parts[0])
	if err != nil {
		return "", nil, refused("scope %q: %v", group, err)
	}
	if spec.Process.User.UID != 0 && slices.ContainsFunc(spec.Mounts, changeable) {
		return "", nil, refused("a scope that belongs to user %d", spec.Process.User.UID)
	}
	s := &scope{slice: parts[0], name: parts[2], unit: parts[1] + "-" + parts[2] + ".scope"}
	for name, value := range spec.Annotations {
		switch name, is := strings.CutPrefix(name, propertyPrefix); {
		case !is:
		case name == collected && value == "'"+collectedAlways+"'":
			s.properties = append(s.properties, systemd.Property(collected, collectedAlways))
		default:
			return "", nil, refused("property %s of its scope", name)
		}
	}
	return path.Join(dir, s.unit), s, few(spec.Linux.Resources)
}

// changeable says whether groups can be changed where they are mounted. libcontainer gives a scope to a user who could
// not, otherwise.
func changeable(m specs.Mount) bool { return m.Type == "cgroup" && !slices.Contains(m.Options, "ro") }

func few(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit >= 0 && *p.Limit < fewest {
		return refused("a scope for %d processes", *p.Limit)
	}
	if n, err := number(r.Unified["pids.max"]); err == nil && n < fewest {
		return refused("a scope for %d processes", n)
	}
	return nil
}

// Scoped says whether the container's group is a scope of systemd.
func (s *Start) Scoped() bool { return s.scope != nil }

// makeScope makes the scope, and then of its group what systemd does not. libcontainer tells systemd in two calls, each
// of which costs systemd more than all else here costs anybody.
func (s *Start) makeScope() (err error) {
	r := resources(s.resources)
	props, err := s.scope.begin(r, s.machine.scopes.Systemd.Version())
	if err != nil {
		return err
	}
	holder, err := s.machine.scopes.Hold()
	if err != nil {
		return err
	}
	s.scope.holder = holder
	err = s.machine.scopes.Systemd.MakeScope(s.group, append(props, systemd.Property("PIDs", []uint32{uint32(holder.Pid())})))
	if err != nil && s.held() == nil {
		err = nil // it is made, and what systemd says of that is lost: it ends connections when it begins anew
	}
	if errors.Is(err, systemd.ErrUnanswered) {
		s.scope.holder = nil
		go settle(s.machine.scopes.Systemd, holder)
		return err
	}
	made := err == nil
	if made {
		err = errors.Join(s.makeGroup(r), s.held())
	}
	if err == nil {
		return nil
	}
	if made { // else it is not there, or somebody else's
		// systemd would not make it for libcontainer while it is there.
		err = errors.Join(err, s.machine.scopes.Systemd.StopScope(s.group))
		_ = os.Remove(fs2.UnifiedMountpoint + s.group) // that was made again after systemd had removed it
	}
	s.Release()
	return err
}

// held says whether the holder is in the group. Where it has ended, systemd ends the scope, and makeGroup makes the
// directory anew: a group that systemd does not know.
func (s *Start) held() error {
	f, err := os.Open(s.Procs[0])
	if err != nil {
		return fmt.Errorf("look for who holds scope: %w", err)
	}
	defer f.Close()
	const few = 4096 // in a scope of ours is nobody else
	ids, err := io.ReadAll(io.LimitReader(f, few))
	if err != nil {
		return fmt.Errorf("look for who holds scope: %w", err)
	}
	if !slices.Contains(strings.Fields(string(ids)), strconv.Itoa(s.scope.holder.Pid())) {
		return fmt.Errorf("make scope %s: who holds it has ended", s.group)
	}
	return nil
}

// settle lets go of a process that systemd may yet take: until it has, or has not, nobody else may have its ID.
func settle(s Systemd, holder Holder) {
	for errors.Is(s.Settle(), systemd.ErrUnanswered) {
		continue
	}
	_ = holder.Close()
}

// Release ends who holds the container's scope, which has the container in it by now, or ends.
func (s *Start) Release() {
	if s == nil || s.scope == nil || s.scope.holder == nil {
		return
	}
	holder := s.scope.holder
	s.scope.holder = nil
	go func() { _ = holder.Close() }()
}

// begin is what a scope begins with, in the order in which libcontainer says it: what is said later holds.
func (s *scope) begin(r *lib.Resources, version int) ([]dbus.Property, error) {
	props := []dbus.Property{
		dbus.PropDescription("libcontainer container " + s.name),
		dbus.PropSlice(s.slice),
		systemd.Property("Delegate", true),
		systemd.Property("MemoryAccounting", true), systemd.Property("CPUAccounting", true),
		systemd.Property("IOAccounting", true), systemd.Property("TasksAccounting", true),
		systemd.Property("DefaultDependencies", false),
	}
	props = append(props, s.properties...)
	if v, is := r.Unified["memory.oom.group"]; is && version >= oomPolicyVersion {
		policy, err := oomPolicy(v)
		if err != nil {
			return nil, err
		}
		props = append(props, policy...)
	}
	limits, err := limitProperties(r, version)
	if err != nil {
		return nil, fmt.Errorf("make scope: %w", err)
	}
	return append(props, limits...), nil
}
