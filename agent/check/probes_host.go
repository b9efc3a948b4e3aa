package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// hostProbes look at how the machine is set up by others.
func hostProbes() []probe {
	return []probe{
		{"mount propagation of /", false, "Mounts that are made on the node later are not seen in pods (HostToContainer), and those of pods not on the node (Bidirectional, " +
			"which drivers of volumes need): mount --make-rshared /, before the agent starts.", probePropagation},
		{"forwarding policy", false, "Packets of pods to other machines, and from them, are dropped unless rules accept them: " +
			"iptables -P FORWARD ACCEPT, or rules that accept what comes from and goes to the bridge of the pods.", probeForwardPolicy},
		{"embedded runtime", false, "With that file the agent runs its pods in the other runtime, not in its own: take the field out of the file, " +
			"or give --runtime= on the command line.", probeEndpoint},
	}
}

func probePropagation(context.Context, *env) answer {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return missing("%v", err)
	}
	defer f.Close()
	return propagation(f)
}

// propagation reads of a mountinfo whether the mount that is seen at / is shared. Of several there the last one hides
// the others.
func propagation(r io.Reader) answer {
	mounts, err := mountinfo.GetMountsFromReader(r, func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != "/", false })
	if err != nil {
		return missing("%v", err)
	}
	found, shared := len(mounts) > 0, false
	if found {
		optional := strings.Fields(mounts[len(mounts)-1].Optional)
		shared = slices.ContainsFunc(optional, func(o string) bool { return strings.HasPrefix(o, "shared:") })
	}
	switch {
	case !found:
		return missing("no mount at / in /proc/self/mountinfo")
	case !shared:
		return limited("private")
	}
	return ok("shared")
}

// legacyPatience is how long the old iptables may take, which waits for its lock.
const legacyPatience = 5 * time.Second

func probeForwardPolicy(ctx context.Context, _ *env) answer {
	c, err := nftables.New()
	if err != nil {
		return limited("nf_tables cannot be asked: %v", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return limited("nf_tables cannot be asked: %v", err)
	}
	drops := dropping(chains)
	for _, family := range []struct{ command, names string }{
		{"iptables-legacy", "/proc/net/ip_tables_names"}, {"ip6tables-legacy", "/proc/net/ip6_tables_names"},
	} {
		drop, err := legacyDrops(ctx, family.command, family.names)
		if err != nil {
			return limited("%s cannot be asked: %v", family.command, err)
		}
		if drop {
			drops = append(drops, family.command+" -P FORWARD")
		}
	}
	if len(drops) > 0 {
		return limited("drops: %s", strings.Join(drops, ", "))
	}
	return ok("accepts")
}

// dropping names the chains that drop what is forwarded and that no rule accepts. In whichever chain of the hook a
// packet is dropped, it is: that another one accepts it does not help.
func dropping(chains []*nftables.Chain) []string {
	families := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}
	var out []string
	for _, c := range chains {
		if c.Table == nil || c.Hooknum == nil || c.Policy == nil || families[c.Table.Family] == "" {
			continue
		}
		if *c.Hooknum == *nftables.ChainHookForward && *c.Policy == nftables.ChainPolicyDrop {
			out = append(out, fmt.Sprintf("chain %s of table %s %s", c.Name, families[c.Table.Family], c.Table.Name))
		}
	}
	return out
}

// legacyDrops asks the old iptables, where its table is loaded at all: to ask would load it.
func legacyDrops(ctx context.Context, command, names string) (bool, error) {
	loaded, err := os.ReadFile(names)
	if errors.Is(err, os.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(loaded)), "filter") {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return false, fmt.Errorf("its table is loaded, but %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, legacyPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-S", "FORWARD")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return false, err
	}
	return bytes.HasPrefix(out, []byte("-P FORWARD DROP")), nil
}

// configFiles are those that the agent's help and unit speak of.
var configFiles = []string{"/etc/berth/config.yaml", "/var/lib/kubelet/config.yaml"}

// maxConfig is more than any configuration has.
const maxConfig = 1 << 20

func probeEndpoint(_ context.Context, e *env) answer {
	files, wanted := configFiles, e.config != ""
	if wanted {
		files = []string{e.config}
	}
	if e.configDir != "" {
		more, err := filepath.Glob(filepath.Join(e.configDir, "*.conf"))
		if err != nil {
			return limited("%s: %v", e.configDir, err)
		}
		files = append(slices.Clone(files), more...)
	}
	var read []string
	for _, name := range files {
		endpoint, err := endpointOf(name)
		switch {
		case errors.Is(err, os.ErrNotExist) && !wanted:
			continue
		case err != nil:
			return limited("%s cannot be read: %v", name, err)
		case endpoint != "":
			return limited("%s has containerRuntimeEndpoint: %s", name, endpoint)
		}
		read = append(read, name)
	}
	if len(read) == 0 {
		return ok("on: there is no configuration file that says otherwise (--config names others)")
	}
	return ok("on, by %s", strings.Join(read, ", "))
}

// endpointOf is the runtime that a configuration file names in any of its documents.
func endpointOf(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // to open a FIFO would wait for who writes to it
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("is no regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return "", err
	}
	for doc := range strings.SplitSeq("\n"+string(data), "\n---") {
		var config struct {
			Endpoint string `json:"containerRuntimeEndpoint"`
		}
		if err := yaml.Unmarshal([]byte(doc), &config); err != nil {
			return "", err
		}
		if config.Endpoint != "" {
			return config.Endpoint, nil
		}
	}
	return "", nil
}
