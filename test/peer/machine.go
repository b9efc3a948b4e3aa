package peer

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// before is what the machine had when the first of this process's runtimes came. Runtimes and CNI plugins leave some
// things for good, which several of them share: they are taken away with the last.
var before struct {
	sync.Mutex
	runtimes           int
	tables, groups     []string
	networks           []string // of this process
	chains, forwarding string
}

const forward = "/proc/sys/net/ipv4/ip_forward"

// keepMachine makes the end of the test, if no other runtime is there then, take away what was not there before.
func (r *Runtime) keepMachine(t *testing.T) {
	t.Helper()
	before.Lock()
	defer before.Unlock()
	if before.runtimes == 0 {
		forwarding, err := os.ReadFile(forward)
		must(t, err)
		chains, err := exec.Command("iptables-save").Output()
		must(t, err)
		before.forwarding, before.chains = string(forwarding), string(chains)
		before.tables, before.groups = tables(t), groups()
	}
	before.runtimes++
	before.networks = append(before.networks, r.Bridge)
	t.Cleanup(func() {
		before.Lock()
		defer before.Unlock()
		if before.runtimes--; before.runtimes == 0 {
			cleanMachine(t)
		}
	})
}

func cleanMachine(t *testing.T) {
	shared := sharedMachine()
	isBerths := func(table string) bool { return strings.Contains(table, "berth") }
	if !shared && !slices.ContainsFunc(tables(t), isBerths) { // whose pods need it, too
		must(t, os.WriteFile(forward, []byte(before.forwarding), 0o644))
	}
	for _, table := range tables(t) {
		if !shared && !slices.Contains(before.tables, table) && strings.HasPrefix(table, "ip") &&
			!isBerths(table) {
			_ = exec.Command("nft", append([]string{"delete", "table"}, strings.Fields(table)...)...).Run()
		}
	}
	removeChains(t, shared)
	for _, g := range groups() {
		if !slices.Contains(before.groups, g) {
			if err := os.Remove(g); err != nil {
				t.Logf("remove group: %v", err)
			}
		}
	}
}

// networkName is in the comments of the plugins' rules.
var networkName = regexp.MustCompile(`name: \\"([^"\\]+)\\"`)

// sharedMachine says whether pods of somebody else have rules of the plugins. What is not of one pod stays then.
func sharedMachine() bool {
	out, _ := exec.Command("iptables-save", "-t", "nat").Output()
	return slices.ContainsFunc(networkName.FindAllSubmatch(out, -1),
		func(m [][]byte) bool { return !slices.Contains(before.networks, string(m[1])) })
}

func isOurs(rule string) bool {
	m := networkName.FindStringSubmatch(rule)
	return m != nil && slices.Contains(before.networks, m[1])
}

// groups are those that containerd puts pods without a parent into, and CRI-O the monitors of its sandboxes.
func groups() []string {
	var out []string
	for _, name := range []string{"k8s.io", "crio"} {
		v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
		v2, _ := filepath.Glob("/sys/fs/cgroup/" + name)
		out = slices.Concat(out, v1, v2)
	}
	return out
}

func tables(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables").Output()
	must(t, err)
	var names []string
	for l := range strings.Lines(string(out)) {
		names = append(names, strings.TrimSpace(strings.TrimPrefix(l, "table ")))
	}
	return names
}

// removeChains removes the plugins' chains that were not there before, and what leads to them; of a machine that is
// shared, only those of our pods.
func removeChains(t *testing.T, shared bool) {
	out, err := exec.Command("iptables-save", "-t", "nat").Output()
	if err != nil {
		return // the table is gone
	}
	var chains []string
	for l := range strings.Lines(string(out)) {
		f := strings.Fields(l)
		if len(f) == 0 {
			continue
		}
		chain, made := strings.CutPrefix(f[0], ":")
		if shared {
			chain, made = f[len(f)-1], isOurs(l)
		}
		if made && strings.HasPrefix(chain, "CNI-") && !strings.Contains(before.chains, ":"+chain+" ") &&
			!slices.Contains(chains, chain) {
			chains = append(chains, chain)
		}
	}
	iptables := func(args ...string) {
		if out, err := exec.Command("iptables",
			append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("iptables %q: %v: %s", args, err, out)
		}
	}
	for l := range strings.Lines(string(out)) {
		rule, ok := strings.CutPrefix(strings.TrimSpace(l), "-A ")
		if ok && slices.ContainsFunc(chains, func(c string) bool {
			return strings.HasSuffix(rule, "-j "+c) && (shared || !strings.HasPrefix(rule, "CNI-"))
		}) {
			f := strings.Fields(rule)
			chain, target := f[0], f[len(f)-1]
			// By its number: a comment with spaces would have to be taken apart.
			removeJump(iptables, chain, target)
		}
	}
	for _, c := range chains {
		iptables("-F", c)
	}
	for _, c := range chains {
		iptables("-X", c)
	}
}

func removeJump(iptables func(...string), chain, target string) {
	out, _ := exec.Command("iptables", "-w", "-t", "nat", "-L", chain, "--line-numbers", "-n").Output()
	for _, l := range slices.Backward(strings.Split(string(out), "\n")) {
		if f := strings.Fields(l); len(f) > 1 && f[1] == target {
			iptables("-D", chain, f[0])
			return
		}
	}
}
