package host

import (
	"path/filepath"
)

// Layout says where things are: what outlives a boot below Root, what does not below Run. Both are absolute.
type Layout struct{ Root, Run string }

// DB is the file of records.
func (l Layout) DB() string { return filepath.Join(l.Root, "runtime.db") }

// RecordsCopy is where the records are kept a second time, for this boot.
func (l Layout) RecordsCopy() string { return filepath.Join(l.Run, "records") }

// Content is where blobs of images are, by their digest.
func (l Layout) Content() string { return filepath.Join(l.Root, "content") }

// Snapshots is where layers and the files of containers are.
func (l Layout) Snapshots() string { return filepath.Join(l.Root, "snapshots") }

// Checkpoints is where checkpoints are while they are made.
func (l Layout) Checkpoints() string { return filepath.Join(l.Root, "checkpoints") }

// NetNS is where the network namespaces of sandboxes are pinned by bind mounts.
func (l Layout) NetNS() string { return filepath.Join(l.Run, "netns") }

// IPAM is where it is recorded which sandbox has which address.
func (l Layout) IPAM() string { return filepath.Join(l.Run, "ipam") }

// CNICache is where libcni keeps the results of plugins, which their DEL is given.
func (l Layout) CNICache() string { return filepath.Join(l.Run, "cni") }

// CNIRecords is where it is recorded with which network configuration a sandbox was set up: plugins keep addresses over
// a boot, and have to be told after it.
func (l Layout) CNIRecords() string { return filepath.Join(l.Root, "pod-networks") }

// Sandboxes has a directory for each sandbox, by its ID.
func (l Layout) Sandboxes() string { return filepath.Join(l.Run, "sandboxes") }

// Containers has a directory for each container, by its ID.
func (l Layout) Containers() string { return filepath.Join(l.Run, "containers") }

// State is where libcontainer keeps the state of containers.
func (l Layout) State() string { return filepath.Join(l.Run, "libcontainer") }

// Runtimes is where other OCI runtimes keep theirs, a directory each.
func (l Layout) Runtimes() string { return filepath.Join(l.Run, "runtimes") }

// Sandbox is the directory of a sandbox.
func (l Layout) Sandbox(id string) sandboxDir { return sandboxDir(filepath.Join(l.Sandboxes(), id)) }

// Container is the directory of a container.
func (l Layout) Container(id string) bundleDir { return bundleDir(filepath.Join(l.Containers(), id)) }

// Volatile are the directories whose content means nothing after a boot.
func (l Layout) Volatile() []string {
	return []string{l.Sandboxes(), l.Containers(), l.State(), l.Runtimes()}
}

// sandboxDir is the directory of a sandbox.
type sandboxDir string

func (d sandboxDir) file(name string) string { return filepath.Join(string(d), name) }

// Keeper is the directory of the keeper: its socket, and the exit records that it writes.
func (d sandboxDir) Keeper() string { return d.file("keeper") }

// Record is a copy of the sandbox's record.
func (d sandboxDir) Record() string { return d.file("record") }

// Shm is a file system of the pod's own, of a bounded size: what its containers can write to of what the sandbox has,
// its shared memory and its files, is in it. Else they could fill the file system of the run directory, which is most
// often that of the machine's /run.
func (d sandboxDir) Shm() string { return d.file("shm") }

// Memory is what containers have as /dev/shm.
func (d sandboxDir) Memory() string { return filepath.Join(d.Shm(), "shm") }

// UserNS is where the user namespace of a pod with IDs of its own is pinned.
func (d sandboxDir) UserNS() string { return d.file("userns") }

// Cgroup says which the sandbox's cgroup is, for when there is no record.
func (d sandboxDir) Cgroup() string { return d.file("cgroup") }

// Records has copies of the records of the sandbox's containers.
func (d sandboxDir) Records() string { return d.file("containers") }

// ContainerRecord is a copy of the record of one of its containers.
func (d sandboxDir) ContainerRecord(id string) string { return filepath.Join(d.Records(), id) }

// bundleDir is the directory of a container: its bundle, and what is kept beside it.
type bundleDir string

func (d bundleDir) file(name string) string { return filepath.Join(string(d), name) }

// Rootfs is where the container's root is mounted.
func (d bundleDir) Rootfs() string { return d.file("rootfs") }

// Spec is the specification of the bundle, which the OCI runtime specification calls config.json.
func (d bundleDir) Spec() string { return d.file("config.json") }

// Filter is the container's seccomp filter, compiled: the launcher writes it, and what enters the container loads it.
func (d bundleDir) Filter() string { return d.file("seccomp.bpf") }

// ImageMounts has a directory for each image that is mounted as a volume.
func (d bundleDir) ImageMounts() string { return d.file("images") }

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
