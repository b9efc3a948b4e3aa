package systemd

import (
	"fmt"
	"strings"
	"time"
)

// Unit is what varies in berth's service unit.
type Unit struct {
	Description string
	ExecStart   []string // absolute path and arguments
	Environment []string // KEY=value
	After       []string // more units to be ordered after
	Watchdog    time.Duration
	// OOMScoreAdjust keeps the agent alive when pods fill the machine; 0 is -999, as kubelet's.
	OOMScoreAdjust int
}

// AgentUnit is the unit of `berth agent`, run by this binary with these arguments.
func AgentUnit(binary string, args ...string) Unit {
	return Unit{
		Description: "berth node agent",
		ExecStart:   append([]string{binary, "agent"}, args...),
		Watchdog:    time.Minute,
	}
}

// String is the unit file.
func (u Unit) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("[Unit]")
	line("Description=%s", specifiers(oneLine(u.Description)))
	line("Wants=network-online.target")
	line("After=%s", strings.Join(append([]string{"network-online.target", "local-fs.target", "time-sync.target"}, u.After...), " "))
	line("# A node whose agent gave up restarting is a lost node.")
	line("StartLimitIntervalSec=0")
	line("")
	line("[Service]")
	line("Type=notify")
	line("ExecStart=%s", commandLine(u.ExecStart))
	line("ExecReload=/bin/kill -HUP $MAINPID")
	for _, e := range u.Environment {
		line("Environment=%s", quote(specifiers(e)))
	}
	line("# Only the agent is stopped: containers go on running, also when it is upgraded.")
	line("KillMode=process")
	line("# The groups of pods are ours; systemd must not tidy them.")
	line("Delegate=yes")
	line("Restart=always")
	line("RestartSec=1s")
	line("OOMScoreAdjust=%d", u.oomScore())
	if u.Watchdog > 0 {
		line("WatchdogSec=%s", u.Watchdog)
	}
	line("LimitNOFILE=1048576")
	line("LimitNPROC=infinity")
	line("LimitCORE=infinity")
	line("TasksMax=infinity")
	line("")
	line("[Install]")
	line("WantedBy=multi-user.target")
	return b.String()
}

func (u Unit) oomScore() int {
	if u.OOMScoreAdjust == 0 {
		return -999
	}
	return u.OOMScoreAdjust
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// specifiers keeps systemd from expanding %n and the like.
func specifiers(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// commandLine quotes arguments; in ExecStart a dollar sign would be expanded too. The executable itself takes no expansion.
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
