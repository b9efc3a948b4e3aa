package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// systemctl returns what it prints, and requires that it went well.
func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestUnit runs the agent as the service that it writes the unit of, with the systemd driver: pods go on through a
// restart, kill -9 and stop of the service, and have their values after a reload of systemd.
func TestUnit(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("needs systemd: the agent is its service")
	}
	n := newNode(t)
	n.useDriver("systemd")
	service := fmt.Sprintf("berth-sys-unit-%d.service", os.Getpid())
	unit, err := exec.Command(bin("berth"), append([]string{"unit", "--"}, n.agentArgs()[1:]...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("/run/systemd/system", service)
	write(t, file, string(unit))
	t.Cleanup(func() { // before the purge
		systemctl(t, "stop", service)
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		systemctl(t, "daemon-reload")
	})
	systemctl(t, "daemon-reload")
	systemctl(t, "start", service)
	pid := func() string { return systemctl(t, "show", "-p", "MainPID", "--value", service) }

	n.apply("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {berth.node/oom-group: pod, "+
		"berth.node/cpu-burst: 20ms}}\nspec:\n  terminationGracePeriodSeconds: 0\n  "+
		fmt.Sprintf(sleeper, "{requests: {cpu: 250m}, limits: {cpu: 500m, memory: 64Mi}}")+"\n")
	before := n.waitReady("a")
	group := n.groupOf(before, before.Status.ContainerStatuses[0])
	processes := n.processesIn(group)
	same := func(what string) {
		t.Helper()
		if now := n.processesIn(group); !slices.Equal(now, processes) {
			t.Errorf("%s: the container has the processes %q, it had %q", what, now, processes)
		}
	}
	values := func() error {
		for _, v := range []groupValue{
			sharesOf("256", "25"), quotaOf("50000", "50000 100000"), limitOf("67108864"),
			{"cpu", "cpu.cfs_burst_us", "20000", "cpu.max.burst", "20000"},
			{v2: "memory.oom.group", want2: "1"},
		} {
			if err := v.check(filepath.Dir(group)); err != nil {
				return err
			}
		}
		return nil
	}
	n.eventually("the pod's values", values)

	first := pid()
	systemctl(t, "restart", service)
	second := pid()
	if second == first {
		t.Errorf("the agent is still process %s", first)
	}
	same("restart")
	systemctl(t, "kill", "--kill-whom=main", "-s", "KILL", service)
	n.eventually("systemd to start the agent again", func() error {
		if now := pid(); now == second || now == "0" {
			return fmt.Errorf("the agent is process %s", now)
		}
		return nil
	})
	n.waitUp()
	same("kill -9")
	n.requireSame(before, n.waitReady("a"))

	systemctl(t, "daemon-reload")
	n.eventually("the values after a reload of systemd", values)
	n.apply("b.yaml", strings.ReplaceAll(pod("b", "\n  "+fmt.Sprintf(sleeper, "{}")), "PeriodSeconds: 1",
		"PeriodSeconds: 0"))
	n.waitReady("b")
	n.remove("b.yaml")
	n.waitGone("b")

	systemctl(t, "stop", service)
	same("stop")
}
