package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oplock"
)

// AppArmorDefault is the name of the profile RuntimeDefault.
const AppArmorDefault = "berth-default"

// ErrNoProfile says that the profile RuntimeDefault cannot be loaded on this machine. Containers run without it, as
// other runtimes have them.
var ErrNoProfile = errors.New("the AppArmor profile RuntimeDefault cannot be loaded")

// AppArmor keeps the profile RuntimeDefault loaded. The zero value is ready to use.
type AppArmor struct {
	once   sync.Once
	lock   oplock.Lock // waiters may give up: the parser takes seconds, or its whole time
	loaded bool        // by this process, so that it is the one of this version

	// Places of tests; "" = the machine's.
	profiles, parser, own string
}

// Ensure has the kernel know the profile. It is loaded by each process, whose version may have other rules, and again
// when somebody has removed it: aa-remove-unknown takes away all that is not in a file of /etc/apparmor.d. The error is
// [ErrNoProfile] where that cannot work here at all.
func (a *AppArmor) Ensure(ctx context.Context) error {
	a.once.Do(func() { a.lock = oplock.New() })
	if err := a.lock.Lock(ctx); err != nil {
		return fmt.Errorf("load AppArmor profile %s: wait for another load: %w", AppArmorDefault, err)
	}
	defer a.lock.Unlock()
	known, err := a.known()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoProfile, err)
	}
	if known && a.loaded {
		return nil
	}
	parser, err := a.find()
	switch {
	case err != nil && known: // of an earlier process, or of the machine's own making
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoProfile, err)
	}
	if err := a.load(ctx, parser); err != nil {
		return err
	}
	a.loaded = true
	return nil
}

// known says whether the kernel has the profile.
func (a *AppArmor) known() (bool, error) {
	file := a.profiles
	if file == "" {
		file = "/sys/kernel/security/apparmor/profiles"
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, AppArmorDefault+" (") {
			return true, nil
		}
	}
	return false, nil
}

// find looks for apparmor_parser also where a service's PATH does not lead.
func (a *AppArmor) find() (string, error) {
	if a.parser != "" {
		return exec.LookPath(a.parser)
	}
	var first error
	for _, name := range []string{"apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"} {
		path, err := exec.LookPath(name)
		if err == nil {
			return path, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

// load hands the profile to the parser, which compiles it and gives it to the kernel.
func (a *AppArmor) load(ctx context.Context, parser string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, parser, "--replace", "--skip-cache", "--quiet")
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(a.profile()), time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		said := strings.Join(strings.Fields(string(out[:min(len(out), 1000)])), " ")
		return fmt.Errorf("load AppArmor profile %s: %w: %s", AppArmorDefault, err, said)
	}
	return nil
}

// profile is the text of the profile. It includes nothing of the machine's, but for the features that rules are meant
// for, without which a parser of another version would take what is not mentioned for forbidden.
func (a *AppArmor) profile() []byte {
	own := a.own
	if own == "" {
		own = "/proc/self/attr/current"
	}
	abi, agent := "", ""
	if b, err := os.ReadFile(own); err == nil {
		label, _, _ := strings.Cut(strings.TrimRight(string(b), "\n\x00"), " (")
		if label != "" && label != "unconfined" && label != AppArmorDefault && !strings.ContainsAny(label, "\"{}[]*?^,()\n") {
			agent = "  signal (receive) peer=\"" + label + "\",\n"
		}
	}
	if _, err := os.Stat("/etc/apparmor.d/abi/3.0"); err == nil {
		abi = "abi <abi/3.0>,\n"
	}
	return []byte(abi + strings.NewReplacer("NAME", AppArmorDefault, "  AGENT\n", agent).Replace(defaultProfile))
}

// defaultProfile allows what capabilities, namespaces and seccomp leave to a container, but for the doors to the
// machine that are files: it holds where a masked path or a read-only mount is missing.
const defaultProfile = `profile NAME flags=(attach_disconnected,mediate_deleted) {
  capability,
  network,
  file,
  umount,

  # A container must not arrange its own mounts: a bind would lead around the rules about paths below.
  deny mount,
  deny remount,
  deny pivot_root,

  # The kernel's memory, its keys and its emergency exits.
  deny /proc/{kcore,kmem,mem,sysrq-trigger} rwklx,
  deny /proc/{acpi,asound,bus,driver,fs,irq,scsi,tty}/** wklx,
  deny /proc/* w,

  # Settings of the whole machine. Those of namespaces a container has of its own: net, messages, semaphores, shared memory.
  deny /proc/sys/{abi,crypto,debug,dev,sunrpc,user,vm,xen}/** wklx,
  deny /proc/sys/fs/[^m]** wklx,
  deny /proc/sys/fs/m[^q]** wklx,
  deny /proc/sys/kernel/[^ms]** wklx,
  deny /proc/sys/kernel/m[^s]** wklx,
  deny /proc/sys/kernel/s[^eh]** wklx,
  deny /proc/sys/kernel/seccomp/** wklx,

  # Of /sys a container may change its own control groups.
  deny /sys/{block,bus,class,dev,devices,hypervisor,module,power}/** wklx,
  deny /sys/kernel/** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/kernel/{debug,security,tracing}/** rwklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/devices/system/cpu/*/thermal_throttle/** rwklx,

  # The machine ends containers, containers of one kind may do so among themselves.
  signal (receive) peer=unconfined,
  signal (send, receive) peer=NAME,
  AGENT
  ptrace (trace, tracedby, read, readby) peer=NAME,

  # Sockets without a file. Those of the machine's own programs are not for pods in its network; streams that a container was given are.
  unix (create, bind, listen, accept, shutdown, getattr, setattr, getopt, setopt),
  unix (connect, send, receive) peer=(label=NAME),
  unix (send, receive) peer=(label=unconfined, addr=none),
}
`

// WantsDefault says whether a container is to have the profile RuntimeDefault, which is so too when nothing is said.
func WantsDefault(c *runtimeapi.ContainerConfig) bool {
	sc := security(c)
	if sc.GetPrivileged() {
		return false
	}
	p, err := armor(sc)
	return err == nil && (p == nil || p.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault)
}

// armor is the profile that is asked for; nil = nothing is said.
func armor(sc *runtimeapi.LinuxContainerSecurityContext) (*runtimeapi.SecurityProfile, error) {
	if p := sc.GetApparmor(); p != nil {
		return p, nil
	}
	p, err := oldProfile(sc.GetApparmorProfile()) //nolint:staticcheck // older clients set only this field
	if err != nil {
		return nil, fmt.Errorf("apparmor: %w", err)
	}
	return p, nil
}

func appArmor(in *Input) (string, error) {
	p, err := armor(security(in.Container))
	if err != nil {
		return "", err
	}
	switch {
	case p.GetProfileType() == runtimeapi.SecurityProfile_Localhost && !in.Host.AppArmor:
		return "", fmt.Errorf("apparmor profile %q is asked for, but this kernel has no AppArmor", p.GetLocalhostRef())
	case p.GetProfileType() == runtimeapi.SecurityProfile_Localhost:
		return strings.TrimPrefix(p.GetLocalhostRef(), "localhost/"), nil
	case in.Armored && WantsDefault(in.Container):
		return AppArmorDefault, nil
	}
	return "", nil
}
