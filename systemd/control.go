package systemd

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// ControlName is the unit of the control plane, and ControlUser the user that it runs as.
const (
	ControlName = "berth-control.service"
	ControlUser = "berth-control"
	// ControlFlags are in this variable, of this file, for who does not edit the unit.
	ControlFlags       = "BERTH_CONTROL_FLAGS"
	ControlEnvironment = "/etc/berth-control/environment"
	// ControlData is where its data is, unless a flag says otherwise.
	ControlData = "/var/lib/berth-control"
)

// ControlService is `berth-control serve`, run by this binary on a data directory with these flags.
type ControlService struct {
	Binary, Data string
	Args         []string
}

// controlWatchdog is how long the control plane may be silent before it is started again.
const controlWatchdog = time.Minute

// Unit is the unit file.
func (s ControlService) Unit() string {
	var b strings.Builder
	section(&b, "Unit", []setting{
		{"", "Description", "Control plane of a Kubernetes cluster"},
		{"", "Documentation", "man:berth-control(1)"},
		{"It advertises the address of the default route, and other members have one.", "Wants", "network-online.target"},
		{"", "After", "network-online.target local-fs.target time-sync.target"},
		{"A node's agent on this machine finds the API there.", "Before", AgentName},
		{"A cluster whose control plane gave up restarting is a lost cluster.", "StartLimitIntervalSec", "0"},
	})
	section(&b, "Service", append(s.running(), s.confined()...))
	section(&b, "Install", []setting{{"", "WantedBy", "multi-user.target"}})
	return b.String()
}

// running is how it starts and ends.
func (s ControlService) running() []setting {
	command := []string{s.Binary, "serve"}
	var environment []setting
	if s.Data != ControlData {
		command = append(command, "--data-dir", s.Data)
	}
	line := commandLine(append(command, s.Args...))
	if len(s.Args) == 0 {
		environment = []setting{{
			"Flags of berth-control serve, as " + ControlFlags + "=--tls-san=api.example.org; the file need not be there.",
			"EnvironmentFile", "-" + ControlEnvironment,
		}}
		line += " $" + ControlFlags
	}
	out := append([]setting{
		{"It says itself when /readyz is ok; units after it wait for that.", "Type", "notify"},
		{"", "NotifyAccess", "main"},
	}, environment...)
	return append(out, []setting{
		{"", "ExecStart", line},
		{"However it ends it comes back: what was acknowledged is on the disk.", "Restart", "always"},
		{"", "RestartSec", "2s"},
		{"A new member first gets all objects from the others, for which it has half an hour.", "TimeoutStartSec", "35min"},
		{"Requests under way are answered, for a minute at most, and what waits for the audit log is written.", "TimeoutStopSec", "90s"},
		{
			"One that does not answer /livez any more, but for etcd, which may wait for other members, is ended and started again.",
			"WatchdogSec", fmt.Sprintf("%ds", int(controlWatchdog.Seconds())),
		},
		{"Where memory is scarce others go first.", "OOMScoreAdjust", "-900"},
		{"etcd tells of slow disks when others are preferred to it.", "CPUWeight", "500"},
		{"", "IOWeight", "500"},
	}...)
}

// confined is what it may.
func (s ControlService) confined() []setting {
	data := []setting{
		{"The data directory, for this user alone: it has the keys of the cluster.", "StateDirectory", filepath.Base(ControlData)},
		{"", "StateDirectoryMode", "0700"},
	}
	if s.Data != ControlData {
		data = []setting{{"The data directory, which has to be there and to be this user's.", "ReadWritePaths", quote(specifiers(s.Data))}}
	}
	return append(append([]setting{
		{"It needs no privilege: ports below 1024 take a drop-in with AmbientCapabilities=CAP_NET_BIND_SERVICE.", "User", ControlUser},
		{"", "Group", ControlUser},
		{"", "CapabilityBoundingSet", ""},
		{"", "NoNewPrivileges", "yes"},
		{"", "UMask", "0077"},
	}, data...), []setting{
		{"An audit log has this directory: nothing else may be written.", "LogsDirectory", filepath.Base(ControlData)},
		{"", "LogsDirectoryMode", "0700"},
		{"", "ProtectSystem", "strict"},
		{"", "ProtectHome", "yes"},
		{"", "PrivateTmp", "yes"},
		{"", "PrivateDevices", "yes"},
		{"It starts no programs but plugins that a webhook's kubeconfig names, and changes nothing of the kernel.", "ProtectKernelTunables", "yes"},
		{"", "ProtectKernelModules", "yes"},
		{"", "ProtectKernelLogs", "yes"},
		{"", "ProtectControlGroups", "yes"},
		{"", "ProtectClock", "yes"},
		{"", "ProtectHostname", "yes"},
		{"", "ProtectProc", "invisible"},
		{"", "RestrictNamespaces", "yes"},
		{"", "RestrictRealtime", "yes"},
		{"", "RestrictSUIDSGID", "yes"},
		{"", "LockPersonality", "yes"},
		{"", "MemoryDenyWriteExecute", "yes"},
		{"", "RemoveIPC", "yes"},
		{"Clients and members, the socket of etcd, and the kernel's answer to which addresses there are.", "RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"},
		{"What services call, and not what changes a machine. A call that is forbidden fails; the process goes on.", "SystemCallFilter", "@system-service"},
		{"", "SystemCallFilter", "~@privileged"},
		{"", "SystemCallErrorNumber", "EPERM"},
		{"", "SystemCallArchitectures", "native"},
	}...)
}

// ControlUsers is the user of the control plane, for sysusers.d(5).
func ControlUsers() string {
	return "# The user that berth-control runs as, see sysusers.d(5).\nu " + ControlUser + " - \"Control plane of a cluster\" " + ControlData + "\n"
}

// ControlDirectories are its directories, for tmpfiles.d(5).
func ControlDirectories() string {
	return fmt.Sprintf(`# Directories of berth-control, see tmpfiles.d(5). None of them is emptied.
# It has the keys of the cluster: for the user that serves alone.
d %s 0700 %s %[2]s -
# Flags, and files that they name. The user that serves reads them, and may not write them.
d %s 0750 root %[2]s -
`, ControlData, ControlUser, filepath.Dir(ControlEnvironment))
}
