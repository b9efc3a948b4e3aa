package main

import (
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/serve"
	"github.com/berth-node/berth/install"
	"github.com/berth-node/berth/install/upgrade"
	"github.com/berth-node/berth/internal/commandline"
)

// trace is something that a node makes on the machine.
type trace struct {
	Kind string `json:"kind"`
	// Name is a path or another name. A star stands for what differs from pod to pod; a path that ends with a slash is
	// a directory with all that is in it.
	Name string `json:"name"`
	What string `json:"what"`
}

// Kinds of traces, in the order they are shown, and when they go.
var traceKinds = []struct{ kind, title, gone string }{
	{"installed", "Files of the installation", "`berth uninstall`, or the package's removal, takes them away."},
	{"file", "Files and directories", "`berth purge` removes them; those of a pod go with it."},
	{"mount", "Mounts", "Those of a pod go with it, the others with `berth purge`, and all of them with the boot."},
	{"cgroup", "Control groups", "Those of a pod go with it, the others with `berth purge`."},
	{"link", "Network interfaces", "A pod's goes with it, the bridge with `berth purge`."},
	{"table", "Tables of nftables", "`berth purge` removes them. No table, chain or rule of anybody else is touched."},
	{"sysctl", "Settings of the kernel", "They stay: others may rely on them by then."},
	{"device", "Devices", "They go with the pod, or with the volume."},
}

// footprint is everything that a node with these settings makes.
func footprint(p config.Place) []trace {
	var out []trace
	add := func(kind, name, what string) { out = append(out, trace{kind, name, what}) }
	l := install.Packaged()
	for _, f := range l.Files(install.Programs{}, install.Documents{}) {
		add("installed", f.Path, f.What)
	}
	add("installed", path.Join(l.Man, "berth*.1"), "manual")
	add("installed", filepath.Join(l.Libexec, upgradesDir)+"/", "what `berth upgrade` keeps of the last version: records, and copies of stores")
	for suffix, what := range map[string]string{
		upgrade.Previous: "beside a file: it was this in the last version, after `berth upgrade`", install.ForeignSuffix: "beside a file: it was there before berth",
		install.EditedSuffix: "beside a file: somebody had changed it before it was replaced",
	} {
		add("installed", "*"+suffix, what)
	}
	for _, all := range []map[string]string{agent.Places(p), cri.Places(p.RootDir, p.RunDir)} {
		for name, what := range all {
			add("file", name, what)
		}
	}
	for _, name := range []string{config.CRISocketName, serve.Private(config.CRISocketName)} {
		add("file", filepath.Join(p.RunDir, name), "socket of the CRI, where one is served")
	}
	c := config.Config{Place: p}
	socket := c.NRISocketPath()
	add("file", socket, "socket of NRI plugins")
	add("file", nri.Own(socket), "the same, by its own name")
	for _, dir := range cri.Mounts(p.RootDir, p.RunDir) {
		add("mount", dir+"/", "in memory, and what is mounted for pods")
	}
	add("mount", filepath.Join(p.RootDir, "pods")+"/", "volumes of pods: in memory, bound, or of drivers")
	add("mount", filepath.Join(p.KubeletDir, "plugins")+"/", "volumes of CSI drivers, staged")
	root := strings.TrimSuffix(p.CgroupRoot, "/")
	add("cgroup", kube.QoSPath(root, corev1.PodQOSGuaranteed)+"/", "pods, by QoS class; with systemd's driver slices of the same names")
	add("cgroup", root+"/berth/", "launchers, and sandboxes without a parent")
	if root != "" {
		add("cgroup", root, "the root of all")
	}
	add("link", p.BridgeName, "bridge of the pods")
	add("link", cni.LinkPrefix+"*", "the node's end of a pod's pair")
	for _, family := range []string{"ip", "bridge"} {
		add("table", family+" "+cni.TableName(p.BridgeName), map[string]string{
			"ip": "addresses and ports of pods", "bridge": "which addresses pods may send from",
		}[family])
	}
	add("sysctl", strings.ReplaceAll(cni.Forwarding, "/", "."), "set to 1 where it is 0: pods reach other networks")
	add("sysctl", "net.ipv4.conf."+p.BridgeName+".*", "of the bridge alone")
	add("device", "/dev/loop*", "volumes of the built-in CSI driver that are images or blocks")
	slices.SortStableFunc(out, func(a, b trace) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func footprintCommand(runDir func() string) *cobra.Command {
	p := config.Default().Place
	var as commandline.Output
	cmd := &cobra.Command{
		Use: "footprint", Short: "List everything that a node makes on the machine",
		Long: `List what an agent with these settings makes: files, mounts, control groups, network interfaces, tables of nftables, settings of the
kernel. The list is made of what makes them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.RunDir = runDir()
			if err := p.Complete(); err != nil {
				return err
			}
			all := footprint(p)
			return as.Print(cmd.OutOrStdout(), struct {
				Traces []trace `json:"traces"`
			}{all}, func(w io.Writer) error {
				if as.String() == "markdown" {
					_, err := io.WriteString(w, footprintDocument(all))
					return err
				}
				return tableFootprint(w, all)
			})
		},
	}
	p.AddFlags(cmd.Flags())
	as.AddFlag(cmd, "table", "markdown")
	return cmd
}

func tableFootprint(w io.Writer, all []trace) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(tw, "KIND\tNAME\tWHAT")
	for _, k := range traceKinds {
		for _, t := range all {
			if t.Kind == k.kind {
				fmt.Fprintf(tw, "%s\t%s\t%s\n", t.Kind, t.Name, t.What)
			}
		}
	}
	return tw.Flush()
}

// footprintDocument is docs/footprint.md.
func footprintDocument(all []trace) string {
	var b strings.Builder
	b.WriteString(`# What berth makes on a machine

With the default settings, installed by a package (` + "`berth install`" + ` has ` + "`/usr/local`" + ` and ` + "`/etc`" + ` in place of ` + "`/usr`" + `), and nothing
else: ` + "`berth footprint`" + ` says the same for other settings, and ` + "`berth footprint -o markdown`" + ` makes this page. A path that ends with a
slash is a directory with all that is in it; a star stands for what differs. A test holds this page to the code, and another one a
running node with a pod to the list.
`)
	for _, k := range traceKinds {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| name | what |\n|---|---|\n", k.title, k.gone)
		for _, t := range all {
			if t.Kind == k.kind {
				fmt.Fprintf(&b, "| `%s` | %s |\n", t.Name, t.What)
			}
		}
	}
	return b.String()
}
