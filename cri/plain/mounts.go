package plain

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Kind is what a mount shows. The numbers are those of cri/helper/proto.h.
type Kind uint32

const (
	Bind    Kind = iota + 1 // a file or directory of the host
	Proc                    // a new proc
	Sys                     // a new sysfs
	Dev                     // a tmpfs with the devices that all have
	Pts                     // a new devpts
	Mqueue                  // the message queues of the IPC namespace
	Groups                  // the container's own group of each hierarchy of v1
	Unified                 // its own group of v2
)

// Mount is one mount of a container. Attributes are those of mount_setattr(2).
type Mount struct {
	Kind             Kind
	Target, Source   string
	Data             []string // options of the file system
	Deep             bool     // what is mounted below the source comes with it
	Set, Clear       uint64
	Below            uint64 // to be set on all of it
	Propagation      uint64
	PropagationBelow bool
}

// attrs are the options by which a mount differs from its file system.
var attrs = map[string]uint64{
	"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV,
	"noexec": unix.MOUNT_ATTR_NOEXEC, "rw": 0,
}

// all are those that a bind which says one of them has in no other way than it says.
const all = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC |
	unix.MOUNT_ATTR_NOSYMFOLLOW

// system are the mounts of what the kernel shows: what it is, where, which attributes it may have, and which options.
var system = map[string]struct {
	kind    Kind
	target  string
	options []string
	data    []string // by the beginnings, up to the equals sign
}{
	"proc":   {Proc, "/proc", []string{"nosuid", "nodev", "noexec"}, nil},
	"sysfs":  {Sys, "/sys", []string{"nosuid", "nodev", "noexec", "rw"}, nil},
	"tmpfs":  {Dev, "/dev", []string{"nosuid", "noexec", "strictatime"}, []string{"mode=", "size="}},
	"devpts": {Pts, "/dev/pts", []string{"nosuid", "noexec"}, []string{"newinstance", "ptmxmode=", "mode=", "gid="}},
	"mqueue": {Mqueue, "/dev/mqueue", []string{"nosuid", "nodev", "noexec"}, nil},
	"cgroup": {Groups, "/sys/fs/cgroup", []string{"nosuid", "nodev", "noexec", "relatime", "ro", "rw"}, nil},
}

// devNames are what a container's /dev has without any mount.
var devNames = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "fd", "stdin", "stdout", "stderr", "core", "console", "pts", "mqueue",
}

func mounts(s *Start, spec *specs.Spec, machine Machine) error {
	seen := map[Kind]bool{}
	var targets []string
	for _, m := range spec.Mounts {
		rest := m
		rest.Destination, rest.Type, rest.Source, rest.Options = "", "", "", nil
		if name := something(rest); name != "" {
			return refused("mount at %s has %s", m.Destination, name)
		}
		if !cleanPath(m.Destination) || m.Source == "" || strings.ContainsRune(m.Source, 0) {
			return refused("mount at %q", m.Destination)
		}
		// What is below it would be covered, and what is at it as well.
		if slices.ContainsFunc(targets, func(t string) bool { return within(t, m.Destination) }) {
			return refused("mount at %s covers another", m.Destination)
		}
		one, err := mount(m, seen)
		if err == nil && one.Kind == Groups {
			err = s.showGroups(&one, m.Options, machine)
		}
		if err != nil {
			return err
		}
		targets = append(targets, m.Destination)
		seen[one.Kind] = true
		s.Mounts = append(s.Mounts, one)
	}
	switch {
	case !seen[Proc] || !seen[Dev]:
		return refused("no /proc or no /dev of its own")
	case spec.Process.Terminal && !seen[Pts]:
		return refused("a terminal without devices of it")
	case len(s.Mounts) > maxPaths:
		return refused("%d mounts", len(s.Mounts))
	}
	return protectSys(s)
}

// protectSys has /sys be read-only where the path is to be. As a read-only path it would be bound on itself with all
// that is mounted below: a second /sys, and a second mount of each hierarchy.
func protectSys(s *Start) error {
	i := slices.Index(s.ReadPaths, "/sys")
	if i < 0 {
		return nil
	}
	for k := range s.Mounts {
		if s.Mounts[k].Kind == Sys {
			s.Mounts[k].Set |= unix.MOUNT_ATTR_RDONLY
			s.ReadPaths = slices.Delete(s.ReadPaths, i, i+1)
			return nil
		}
	}
	return nil
}

func mount(m specs.Mount, seen map[Kind]bool) (Mount, error) {
	if m.Type == "bind" {
		return bind(m, seen)
	}
	sys, is := system[m.Type]
	switch {
	case !is || m.Destination != sys.target:
		return Mount{}, refused("%s at %s", m.Type, m.Destination)
	case (sys.kind == Pts || sys.kind == Mqueue) && !seen[Dev], sys.kind == Groups && !seen[Sys]:
		return Mount{}, refused("%s before what it is on", m.Destination)
	}
	out := Mount{Kind: sys.kind, Target: m.Destination, Source: m.Source}
	for _, o := range m.Options {
		name, _, valued := strings.Cut(o, "=")
		if valued {
			name += "="
		}
		switch {
		case slices.Contains(sys.options, o):
			out.attribute(o)
		case slices.Contains(sys.data, name) && !strings.ContainsAny(o, ",\x00"):
			out.Data = append(out.Data, o)
		default:
			return Mount{}, refused("option %s of %s", o, m.Destination)
		}
	}
	if sys.kind == Dev && !slices.ContainsFunc(out.Data, func(o string) bool { return strings.HasPrefix(o, "mode=") }) {
		return Mount{}, refused("/dev without a mode")
	}
	return out, nil
}

// showGroups: on v1 each hierarchy is a bind of the host's mount. On v2 there is one new mount. What that shows depends
// on the namespace, and to make it in the host's would also change how the host's own is mounted (nsdelegate).
func (s *Start) showGroups(m *Mount, options []string, machine Machine) error {
	if machine.unified() {
		if !s.ownGroups() {
			return refused("the host's groups at %s", m.Target)
		}
		m.Kind = Unified
		return nil
	}
	m.Deep, m.Clear, m.Propagation, m.PropagationBelow = true, all, unix.MS_PRIVATE, true
	if slices.Contains(options, "relatime") {
		m.Clear |= unix.MOUNT_ATTR__ATIME
	}
	return nil
}

func (m *Mount) attribute(o string) {
	if o == "strictatime" {
		m.Set |= unix.MOUNT_ATTR_STRICTATIME
	}
	m.Set |= attrs[o] // "relatime" is none of them: it is what there is without a word
}

func bind(m specs.Mount, seen map[Kind]bool) (Mount, error) {
	first, below, _ := strings.Cut(m.Destination[1:], "/")
	switch {
	case !path.IsAbs(m.Source):
		return Mount{}, refused("mount of %q", m.Source)
	case first == "proc" || first == "sys":
		return Mount{}, refused("mount at %s", m.Destination)
	case first == "dev" && (below == "" || strings.Contains(below, "/") || slices.Contains(devNames, below) || !seen[Dev]):
		return Mount{}, refused("mount at %s", m.Destination)
	}
	out := Mount{Kind: Bind, Target: m.Destination, Source: m.Source}
	bound, spread := false, 0
	for _, o := range m.Options {
		attr, is := attrs[o]
		switch {
		case is:
			out.Set |= attr
			out.Clear = all
		case o == "bind" || o == "rbind":
			bound, out.Deep = true, out.Deep || o == "rbind"
		case o == "rprivate" || o == "rslave":
			spread++
			out.Propagation, out.PropagationBelow = unix.MS_PRIVATE, true
			if o == "rslave" {
				out.Propagation = unix.MS_SLAVE
			}
		case o == "rro":
			out.Below |= unix.MOUNT_ATTR_RDONLY
		default:
			return Mount{}, refused("option %s of %s", o, m.Destination)
		}
	}
	if !bound || spread > 1 || slices.Contains(m.Options, "ro") && slices.Contains(m.Options, "rw") {
		return Mount{}, refused("options %v of %s", m.Options, m.Destination)
	}
	return out, nil
}
