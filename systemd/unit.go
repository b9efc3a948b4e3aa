// Units of systemd, as text: each line has its reason above it, for who reads the file on a machine.

package systemd

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Names of the units.
const (
	AgentName   = "berth.service"
	RuntimeName = "berth-runtime.service"
	SliceName   = "berth.slice"
	// KubeletDropIn is the drop-in by which the agent runs as kubelet.service, below the directory of units.
	KubeletDropIn = "kubelet.service.d/90-berth.conf"
)

// Service is what varies between berth's services.
type Service struct {
	Description string
	ExecStart   []string // absolute path and arguments
	Environment []string // KEY=value
	// EnvironmentFiles have more of it, where they are there.
	EnvironmentFiles []string
	Variables        []string // of the environment, whose words are further arguments
	After            []string // more units to be ordered after
	Before           []string
	Conflicts        []string
	Watchdog         time.Duration // 0: none
	Reload           bool          // it reads its configuration again at SIGHUP
	// OOMScoreAdjust keeps the service alive when pods fill the machine; 0 is -999, as kubelet's.
	OOMScoreAdjust int
}

// AgentService is `berth agent`, run by this binary with these arguments.
func AgentService(binary string, args ...string) Service {
	return Service{
		Description: "berth node agent", ExecStart: append([]string{binary, "agent"}, args...),
		After: []string{"time-sync.target"}, Conflicts: []string{RuntimeName}, Watchdog: time.Minute, Reload: true,
	}
}

// RuntimeService is `berth runtime`: the container runtime alone, for a kubelet.
func RuntimeService(binary string, args ...string) Service {
	return Service{
		Description: "berth container runtime", ExecStart: append([]string{binary, "runtime"}, args...),
		Before: []string{"kubelet.service"}, Conflicts: []string{AgentName},
	}
}

// KubeletService is the agent as kubeadm starts a kubelet: with the arguments that kubeadm's files have, and as a
// runtime alone while there are none. --kubelet-dir is where drivers look for kubelet's sockets.
func KubeletService(binary string, args ...string) Service {
	s := AgentService(binary, append([]string{"--await-config", "--kubelet-dir=/var/lib/kubelet"}, args...)...)
	s.Environment = []string{
		"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf",
		"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml",
	}
	s.EnvironmentFiles = []string{"/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet"}
	s.Variables = []string{"KUBELET_KUBECONFIG_ARGS", "KUBELET_CONFIG_ARGS", "KUBELET_KUBEADM_ARGS", "KUBELET_EXTRA_ARGS"}
	return s
}

// A setting is a line of a unit, and why it is there.
type setting struct{ why, key, value string }

// Unit is the unit file.
func (s *Service) Unit() string {
	var b strings.Builder
	section(&b, "Unit", s.unit())
	section(&b, "Service", s.service())
	b.WriteString(notSandboxed)
	section(&b, "Install", []setting{{"", "WantedBy", "multi-user.target"}})
	return b.String()
}

// DropIn has another unit, such as kubelet's, run the service.
func (s *Service) DropIn() string {
	var b strings.Builder
	b.WriteString("# berth runs as this unit, in place of the program that the unit names.\n")
	s.dropIn(&b)
	return b.String()
}

// Standing is [Service.DropIn] for a machine that has no such unit either: it is good as the unit itself, too.
func (s *Service) Standing() string {
	var b strings.Builder
	b.WriteString("# berth runs as this unit. This is good as the unit and as a drop-in of one that names another program.\n")
	s.dropIn(&b)
	section(&b, "Install", []setting{{"", "WantedBy", "multi-user.target"}})
	return b.String()
}

func (s *Service) dropIn(b *strings.Builder) {
	settings := []setting{{"The command of the unit itself is not run.", "ExecStart", ""}}
	other := *s
	other.Conflicts = append(slices.Clone(s.Conflicts), AgentName) // what berth's own unit says of the others
	section(b, "Unit", other.unit()[1:])
	section(b, "Service", append(settings, s.service()...))
	b.WriteString(notSandboxed)
}

func (s *Service) unit() []setting {
	out := []setting{
		{"", "Description", specifiers(oneLine(s.Description))},
		{"", "Documentation", "man:berth(1)"},
		{
			"Images are pulled over the network, but pods whose images are here need not wait for it: wanted, not required.",
			"Wants", "network-online.target",
		},
		{"", "After", strings.Join(append([]string{"network-online.target", "local-fs.target", "dbus.service"}, s.After...), " ")},
	}
	if len(s.Before) > 0 {
		out = append(out, setting{"", "Before", strings.Join(s.Before, " ")})
	}
	if len(s.Conflicts) > 0 {
		out = append(out, setting{"They have the same directories: one at a time.", "Conflicts", strings.Join(s.Conflicts, " ")})
	}
	return append(out, setting{"A node whose agent gave up restarting is a lost node.", "StartLimitIntervalSec", "0"})
}

func (s *Service) service() []setting {
	out := []setting{
		{"The service says itself when it is ready; units after it wait for that.", "Type", "notify"},
		{"Messages of other processes, of containers above all, do not count.", "NotifyAccess", "main"},
		{"", "ExecStart", s.command()},
	}
	if s.Reload {
		out = append(out, setting{"The files of the configuration are read again, and pods go on.", "ExecReload", "/bin/kill -HUP $MAINPID"})
	}
	for _, e := range s.Environment {
		out = append(out, setting{"", "Environment", quote(specifiers(e))})
	}
	for _, f := range s.EnvironmentFiles {
		out = append(out, setting{"", "EnvironmentFile", "-" + specifiers(f)})
	}
	out = append(out, []setting{
		{"What it can reserve of memory and CPU is set on the slice.", "Slice", SliceName},
		{"Only the service is stopped: pods go on running, also when it is upgraded.", "KillMode", "process"},
		{"The groups of pods are ours; systemd must not tidy them.", "Delegate", "yes"},
		{"However it ends it comes back, and takes its pods over.", "Restart", "always"},
		{"", "RestartSec", "1s"},
		{"A first start on a slow disk reads every record before it is ready.", "TimeoutStartSec", "5min"},
		{"It waits for steps that are under way, not for pods.", "TimeoutStopSec", "30s"},
		{
			"The kernel's OOM killer takes pods first, by their QoS class; keepers and containers have values of their own.",
			"OOMScoreAdjust", fmt.Sprint(s.oomScore()),
		},
		{"A process of the group that is killed for memory is not the end of the service.", "OOMPolicy", "continue"},
	}...)
	if s.Watchdog > 0 {
		out = append(out, setting{"An agent that hangs is ended and started again.", "WatchdogSec", fmt.Sprintf("%ds", int(s.Watchdog.Seconds()))})
	}
	return append(out, []setting{
		{"A node has an open file for each stream, watch and pod. Containers inherit the limits, as from every runtime.", "LimitNOFILE", "1048576"},
		{"Processes are limited by pod (podPidsLimit), not by user.", "LimitNPROC", "infinity"},
		{"", "LimitCORE", "infinity"},
		{"", "TasksMax", "infinity"},
	}...)
}

// notSandboxed says why settings that people look for are not in the unit.
const notSandboxed = `# Not set, as containers would have it too or pods could not be made:
# - a mount namespace (ProtectSystem, ProtectHome, PrivateTmp, PrivateDevices, ProtectKernelTunables, ...): what is mounted for a
#   pod must be seen by the host and outlive the service;
# - system call filters (SystemCallFilter, RestrictNamespaces, RestrictSUIDSGID, LockPersonality, MemoryDenyWriteExecute, ...) and
#   NoNewPrivileges: they are inherited for good, and containers have their own, by their securityContext;
# - CapabilityBoundingSet: no container, privileged ones neither, could have more.
`

// Slice is the unit of the slice that the services are in, beside the pods' own.
func Slice() string {
	var b strings.Builder
	section(&b, "Unit", []setting{
		{"", "Description", "berth's own processes, without pods"},
		{"", "Documentation", "man:berth(1)"},
		{"", "Before", "slices.target"},
	})
	section(&b, "Slice", []setting{
		{"Pods that have all CPUs busy do not keep the node from answering.", "CPUWeight", "1000"},
		{"", "IOWeight", "1000"},
		{"Its working set is reclaimed last (cgroup v2).", "MemoryLow", "64M"},
	})
	return b.String()
}

func section(b *strings.Builder, name string, settings []setting) {
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	fmt.Fprintf(b, "[%s]\n", name)
	for _, s := range settings {
		if s.why != "" {
			fmt.Fprintf(b, "# %s\n", s.why)
		}
		fmt.Fprintf(b, "%s=%s\n", s.key, s.value)
	}
}

func (s *Service) oomScore() int {
	if s.OOMScoreAdjust == 0 {
		return -999
	}
	return s.OOMScoreAdjust
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// specifiers keeps systemd from expanding %n and the like.
func specifiers(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// commandLine quotes arguments; in ExecStart a dollar sign would be expanded too. The executable itself takes no
// expansion.
func (s *Service) command() string {
	words := []string{commandLine(s.ExecStart)}
	for _, v := range s.Variables {
		words = append(words, "$"+v) // unquoted and without braces it is as many words as there are
	}
	return strings.Join(words, " ")
}

func commandLine(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		a = specifiers(a)
		if i > 0 {
			a = strings.ReplaceAll(a, "$", "$$")
		}
		out[i] = quote(a)
	}
	return strings.Join(out, " ")
}

func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n\r\"'\\;") {
		return s
	}
	r := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\r", `\r`)
	return `"` + r.Replace(s) + `"`
}
