package host

import (
	"path/filepath"
)

// Layout says where things are.
type Layout struct{ Root, Run string }

func (l Layout) DB() string          { return filepath.Join(l.Root, "runtime.db") }
func (l Layout) RecordsCopy() string { return filepath.Join(l.Run, "records") } // of this boot
func (l Layout) Content() string     { return filepath.Join(l.Root, "content") }
func (l Layout) Snapshots() string   { return filepath.Join(l.Root, "snapshots") }
func (l Layout) Checkpoints() string { return filepath.Join(l.Root, "checkpoints") } // being made
func (l Layout) NetNS() string       { return filepath.Join(l.Run, "netns") }
func (l Layout) IPAM() string        { return filepath.Join(l.Run, "ipam") }
func (l Layout) CNICache() string    { return filepath.Join(l.Run, "cni") }
func (l Layout) Sandboxes() string   { return filepath.Join(l.Run, "sandboxes") }
func (l Layout) Containers() string  { return filepath.Join(l.Run, "containers") }
func (l Layout) State() string       { return filepath.Join(l.Run, "libcontainer") }
func (l Layout) Runtimes() string    { return filepath.Join(l.Run, "runtimes") }

func (l Layout) Sandbox(id string) sandboxDir { return sandboxDir(filepath.Join(l.Sandboxes(), id)) }

func (l Layout) Container(id string) bundleDir { return bundleDir(filepath.Join(l.Containers(), id)) }

// Volatile are the directories whose content means nothing after a boot.
func (l Layout) Volatile() []string {
	return []string{l.Sandboxes(), l.Containers(), l.State(), l.Runtimes()}
}

// sandboxDir is the directory of a sandbox.
type sandboxDir string

func (d sandboxDir) file(name string) string { return filepath.Join(string(d), name) }
func (d sandboxDir) Keeper() string          { return d.file("keeper") }
func (d sandboxDir) Record() string          { return d.file("record") }
func (d sandboxDir) Shm() string             { return d.file("shm") }
func (d sandboxDir) UserNS() string          { return d.file("userns") }

// Says which it is, for when there is no record.
func (d sandboxDir) Cgroup() string                   { return d.file("cgroup") }
func (d sandboxDir) Records() string                  { return d.file("containers") } // of its containers
func (d sandboxDir) ContainerRecord(id string) string { return filepath.Join(d.Records(), id) }

// bundleDir is the directory of a container: its bundle, and what is kept beside it.
type bundleDir string

func (d bundleDir) file(name string) string { return filepath.Join(string(d), name) }
func (d bundleDir) Rootfs() string          { return d.file("rootfs") }
func (d bundleDir) Spec() string            { return d.file("config.json") }
func (d bundleDir) Filter() string          { return d.file("seccomp.bpf") } // written by the launcher
func (d bundleDir) ImageMounts() string     { return d.file("images") }

// RuntimeFile says by which runtime a container was made, for when there is no record of it any more.
func (d bundleDir) RuntimeFile() string { return d.file("runtime.json") }

// RuntimeRun is where the keeper and a runtime leave things for each other for a moment.
func (d bundleDir) RuntimeRun() string { return d.file("run") }

// Files of a sandbox, in its directory.
const (
	FileHosts      = "hosts"
	FileHostname   = "hostname"
	FileResolvConf = "resolv.conf"
)
