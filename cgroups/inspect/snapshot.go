// Package inspect shows and explains the control groups of a node's pods: on the live machine with or without an agent,
// on a node that a kubelet runs, and from a file captured elsewhere. Everything it prints is computed from a Snapshot,
// so that what is shown of a captured machine is what was shown on it.
package inspect

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/oom"
)

// Snapshot is a machine at one instant, as raw as possible: the bytes of kernel files, not what we make of them.
type Snapshot struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Machine Machine   `json:"machine"`
	// Groups by path. The files of the v2 hierarchy beside v1 ones are named with the prefix "unified/".
	Groups    map[string]Group    `json:"groups"`
	Processes map[int]Process     `json:"processes,omitempty"`
	Names     map[string]Identity `json:"names,omitempty"` // by pod uid
	Pods      []corev1.Pod        `json:"pods,omitempty"`  // whose specification is known
	PodsFrom  string              `json:"podsFrom,omitempty"`
	Partial   bool                `json:"partial,omitempty"`   // there are pods that are not in Pods
	Runtimes  []string            `json:"runtimes,omitempty"`  // that have told of all they know
	Pins      map[string]Pins     `json:"pins,omitempty"`      // by pod uid
	Kills     []oom.Kill          `json:"kills,omitempty"`     // for want of memory, in the pods' groups
	Above     map[string]Group    `json:"above,omitempty"`     // limits of the groups that those of all pods are in
	KillsNote string              `json:"killsNote,omitempty"` // why there may have been more

	built  forest          // the trees, once they were asked for
	uids   map[string]bool // of pods that have a group, as of so many groups
	uidsOf int

	unmeasured bool // no figures are worked out
	nameOnly   bool // of pods no more is decoded than what tells names
	silent     bool // an agent is there that does not answer
}

// Machine is what the arithmetic needs to know of the node.
type Machine struct {
	Host, Kernel string
	Mode         cgroups.Mode
	CPUs         int
	Memory       int64
	Root         string // the --cgroup-root
	Options      kube.Options
	Node         string       // suffix of static pods' names, "": the host's name
	Evicts       *kube.Evicts `json:",omitempty"` // by which rules pods are evicted; nil: that is not known
}

// Group is one control group.
type Group struct {
	Files   map[string]string `json:"files"`
	Pids    []int             `json:"pids,omitempty"`
	Inode   uint64            `json:"inode,omitempty"`
	Inodes  []uint64          `json:"inodes,omitempty"`  // in all hierarchies, where they are asked for
	Missing []string          `json:"missing,omitempty"` // hierarchies it does not exist in
}

// Process is what decides who the OOM killer takes.
type Process struct {
	Comm        string `json:"comm"`
	OOMScore    int    `json:"oomScore"`
	OOMScoreAdj int    `json:"oomScoreAdj"`
	RSS         int64  `json:"rss"`
}

// Identity is a pod's name and those of its containers, by ID.
type Identity struct {
	Namespace  string            `json:"namespace,omitempty"`
	Name       string            `json:"name,omitempty"`
	Containers map[string]string `json:"containers,omitempty"`
	Static     bool              `json:"static,omitempty"`    // its manifest is a file
	InRuntime  bool              `json:"inRuntime,omitempty"` // a container runtime knows it
}

const snapshotVersion = 1

// Save writes the snapshot, compressed when the name ends in .gz.
func (s *Snapshot) Save(path string) error {
	// Names and specs of pods are not everybody's.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("save capture: %w", err)
	}
	defer f.Close()
	var w io.Writer = f
	var z *gzip.Writer
	if strings.HasSuffix(path, ".gz") {
		z = gzip.NewWriter(f)
		w = z
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	if err := e.Encode(s); err != nil {
		return fmt.Errorf("save capture: %w", err)
	}
	if z != nil {
		if err := z.Close(); err != nil {
			return fmt.Errorf("save capture: %w", err)
		}
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("save capture: %w", err)
	}
	return nil
}

// maxCapture bounds what a capture may grow to when it is unpacked.
const maxCapture = 512 << 20

// Load reads a capture.
func Load(path string) (*Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load capture: %w", err)
	}
	defer f.Close()
	s, err := decode(f)
	if err != nil {
		return nil, fmt.Errorf("load capture %s: %w", path, err)
	}
	return s, nil
}

func decode(r io.ReadSeeker) (*Snapshot, error) {
	var in io.Reader = r
	magic := make([]byte, 2)
	if _, err := io.ReadFull(r, magic); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("unpack: %w", err)
		}
		defer z.Close()
		in = z
	}
	var s Snapshot
	if err := json.NewDecoder(io.LimitReader(in, maxCapture)).Decode(&s); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if s.Version != snapshotVersion {
		return nil, fmt.Errorf("it has version %d, this berth reads %d", s.Version, snapshotVersion)
	}
	return &s, nil
}

// file is one kernel file of a group, "" when it is not there.
func (g Group) file(name string) string { return strings.TrimSpace(g.Files[name]) }

// usage computes the figures of a group.
func (s *Snapshot) usage(path string) cgroups.Usage {
	g := s.Groups[path]
	if s.unmeasured || g.Files == nil { // nothing of it has been read yet
		return cgroups.Usage{}
	}
	u, _ := cgroups.ParseUsage(s.Machine.Mode, func(controller, file string) []byte {
		if controller == "" && s.Machine.Mode != cgroups.Unified {
			file = "unified/" + file
		}
		return []byte(g.Files[file])
	})
	u.Time = s.Time
	return u
}

// pod is the specification of the pod with this uid.
func (s *Snapshot) pod(uid string) *corev1.Pod {
	for i := range s.Pods {
		if string(s.Pods[i].UID) == uid {
			return &s.Pods[i]
		}
	}
	return nil
}

// taken are the specifications of the pods that the node has taken in: those have groups. One that it refused counts
// for nothing, whoever asks for it.
func (s *Snapshot) taken() []*corev1.Pod {
	out := make([]*corev1.Pod, 0, len(s.Pods))
	for i := range s.Pods {
		if s.hasPod(string(s.Pods[i].UID)) {
			out = append(out, &s.Pods[i])
		}
	}
	return out
}
