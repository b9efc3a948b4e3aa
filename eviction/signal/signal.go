// Package signal names what a node can run out of, as kubelet does, and says how much of each there is.
package signal

import "time"

// Signal is something that a node can run out of.
type Signal string

// The signals of kubelet's configuration.
const (
	MemoryAvailable            Signal = "memory.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodeFsAvailable            Signal = "nodefs.available"
	NodeFsInodesFree           Signal = "nodefs.inodesFree"
	ImageFsAvailable           Signal = "imagefs.available"
	ImageFsInodesFree          Signal = "imagefs.inodesFree"
	ContainerFsAvailable       Signal = "containerfs.available"
	ContainerFsInodesFree      Signal = "containerfs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

// What one pod may have of the disk, by kubelet's names in its metrics. No node runs out of these, and no threshold is
// of them.
const (
	EmptyDirLimit  Signal = "emptydirfs.limit"
	PodLimit       Signal = "ephemeralpodfs.limit"
	ContainerLimit Signal = "ephemeralcontainerfs.limit"
)

// Limits are the signals of one pod.
func Limits() []Signal { return []Signal{EmptyDirLimit, PodLimit, ContainerLimit} }

// Reading is how much there is of a signal at a moment: bytes, inodes or process IDs.
type Reading struct {
	Available int64
	Capacity  int64
	// Doubt is how much more may be available: what the kernel has charged and does not say yet whether it can drop.
	Doubt int64
	Time  time.Time
}

// Readings are those of a moment. A signal that could not be read is not among them: nothing is done about what is not
// known.
type Readings map[Signal]Reading
