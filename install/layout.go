// Package install lays berth out on a machine: which files there are, where, and why; it puts them there, knows later
// which ones it has put there, and takes them away. Packages are made of the same files.
package install

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/berth-node/berth/systemd"
)

// Layout says where kinds of files are: directories, absolute.
type Layout struct {
	Bin, Libexec                   string
	Units, Tmpfiles, Sysctl, Mods  string
	Man, Bash, Zsh, Fish, Examples string
	// Config are what people edit, Manifests the pods of the node, and Run what a boot begins without.
	Config, Manifests, Run string
}

// Packaged is what the FHS and systemd (file-hierarchy(7)) give to the distribution's packages.
func Packaged() Layout {
	return Layout{
		Bin: "/usr/bin", Libexec: "/usr/libexec/berth",
		Units: "/usr/lib/systemd/system", Tmpfiles: "/usr/lib/tmpfiles.d", Sysctl: "/usr/lib/sysctl.d", Mods: "/usr/lib/modules-load.d",
		Man: "/usr/share/man/man1", Bash: "/usr/share/bash-completion/completions",
		Zsh: "/usr/share/zsh/vendor-completions", Fish: "/usr/share/fish/vendor_completions.d", Examples: "/usr/share/doc/berth/examples",
		Config: "/etc/berth", Manifests: "/etc/berth/manifests", Run: "/run/berth",
	}
}

// Local is where an administrator puts what no package has brought.
func Local() Layout {
	l := Packaged()
	l.Bin, l.Libexec = "/usr/local/bin", "/usr/local/libexec/berth"
	l.Units, l.Tmpfiles, l.Sysctl, l.Mods = "/etc/systemd/system", "/etc/tmpfiles.d", "/etc/sysctl.d", "/etc/modules-load.d"
	l.Man, l.Bash = "/usr/local/share/man/man1", "/usr/local/share/bash-completion/completions"
	l.Zsh, l.Fish = "/usr/local/share/zsh/site-functions", "/usr/local/share/fish/vendor_completions.d"
	l.Examples = "/usr/local/share/doc/berth/examples"
	return l
}

// A File is one file of an installation.
type File struct {
	Path string
	Mode fs.FileMode
	Data []byte // its content, unless From says where that is
	From string
	What string // in a few words, for who is asked whether it may be written
}

// Programs are where the programs are that are installed: two may be missing on a machine that needs neither.
type Programs struct{ Berth, Helper, Wasm string }

// Beside are the programs in a directory, as the build makes them.
func Beside(dir string) Programs {
	return Programs{Berth: path.Join(dir, "berth"), Helper: path.Join(dir, "berth-helper"), Wasm: path.Join(dir, "berth-wasm")}
}

// Document is a file that the commands make of themselves: a page of the manual, or a completion. Its name is its
// place.
type Document struct {
	Name string
	Data []byte
}

// Documents are the files that the commands make.
type Documents struct{ Man, Bash, Zsh, Fish []Document }

// Files are the files of an installation, by path. args are what the agent is started with.
func (l Layout) Files(p Programs, d Documents, args ...string) []File {
	berth := path.Join(l.Bin, "berth")
	agent, runtime := systemd.AgentService(berth, args...), systemd.RuntimeService(berth)
	out := []File{
		{Path: berth, Mode: 0o755, From: p.Berth, What: "the agent, the runtime and the commands"},
		{Path: path.Join(l.Libexec, "berth-helper"), Mode: 0o755, From: p.Helper, What: "what each pod's keeper is"},
		{Path: path.Join(l.Libexec, "berth-wasm"), Mode: 0o755, From: p.Wasm, What: "what runs WebAssembly modules"},
		{Path: path.Join(l.Units, systemd.AgentName), Mode: 0o644, Data: []byte(agent.Unit()), What: "the agent's unit"},
		{Path: path.Join(l.Units, systemd.RuntimeName), Mode: 0o644, Data: []byte(runtime.Unit()), What: "the unit of the runtime alone"},
		{Path: path.Join(l.Units, systemd.SliceName), Mode: 0o644, Data: []byte(systemd.Slice()), What: "the slice of both"},
		{Path: path.Join(l.Tmpfiles, "berth.conf"), Mode: 0o644, Data: []byte(l.tmpfiles()), What: "directories that are made at boot"},
		{Path: path.Join(l.Sysctl, "90-berth.conf"), Mode: 0o644, Data: []byte(sysctl), What: "settings of the kernel"},
		{Path: path.Join(l.Mods, "berth.conf"), Mode: 0o644, Data: []byte(modules), What: "modules of the kernel"},
	}
	kubelet := systemd.AgentService(berth, append([]string{"--config", "/var/lib/kubelet/config.yaml"}, args...)...)
	out = append(out, File{
		Path: path.Join(l.Examples, "90-berth.conf"), Mode: 0o644, Data: []byte(kubelet.DropIn()),
		What: "has kubelet.service run the agent, once it is put below " + path.Dir(path.Join("/etc/systemd/system", systemd.KubeletDropIn)),
	})
	out = append(out, l.documents(d)...)
	slices.SortFunc(out, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// documents are the files that the commands make, each in the directory of its kind.
func (l Layout) documents(d Documents) []File {
	var out []File
	for _, kind := range []struct {
		dir, what string
		all       []Document
	}{
		{l.Man, "manual", d.Man}, {l.Bash, "completion for bash", d.Bash}, {l.Zsh, "completion for zsh", d.Zsh}, {l.Fish, "completion for fish", d.Fish},
	} {
		for _, one := range kind.all {
			out = append(out, File{Path: path.Join(kind.dir, one.Name), Mode: 0o644, Data: one.Data, What: kind.what})
		}
	}
	return out
}

func (l Layout) tmpfiles() string {
	return fmt.Sprintf(`# Directories of berth, see tmpfiles.d(5). None of them is emptied.
# Manifests may hold Secrets: for root alone.
d %s 0755 root root -
d %s 0700 root root -
# Sockets of the agent and of pods. Others pass through, to what is theirs, and see no names.
d %s 0711 root root -
`, l.Config, l.Manifests, l.Run)
}

const sysctl = `# Settings of the kernel for a node with pods, see sysctl.d(5). A file of the same name in /etc/sysctl.d replaces this one.

# Pods reach other networks through this machine. The agent sets it, too; here it stands so that nobody's reload takes it away.
net.ipv4.ip_forward = 1

# Files that are watched are counted by user, and the root of all containers without a user namespace is one user. A hundred
# containers that watch a few hundred files each are beyond the kernel's defaults.
fs.inotify.max_user_instances = 8192
fs.inotify.max_user_watches = 1048576

# Each container has a keyring of its own, of the same user.
kernel.keys.root_maxkeys = 1000000
kernel.keys.root_maxbytes = 25000000

# kubelet also sets these, and they are for you to decide, since they are about the whole machine: memory that is promised is
# not checked, and a kernel that has gone wrong starts again after ten seconds.
#vm.overcommit_memory = 1
#kernel.panic = 10
#kernel.panic_on_oops = 1
`

const modules = `# Modules of the kernel for pods, see modules-load.d(5). The kernel loads them itself when they are needed, unless that has been
# forbidden by then (kernel.modules_disabled), as on machines that are made safe after they have started.

# The root file systems of containers.
overlay
# Their network.
bridge
veth
# The addresses and ports of pods.
nf_tables
nft_chain_nat
nft_masq
nft_nat
`
