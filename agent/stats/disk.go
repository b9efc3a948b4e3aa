package stats

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/openat"
	"github.com/berth-node/berth/internal/patience"
)

// aside is what runs beside those who ask, until it is ended.
type aside struct {
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

func newAside() *aside {
	ctx, cancel := context.WithCancel(context.Background())
	return &aside{ctx: ctx, cancel: cancel}
}

// end waits for what runs, but not for a file system that does not answer.
func (a *aside) end() {
	a.cancel()
	ended := make(chan struct{})
	go func() {
		a.wait.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endPatience):
	}
}

// endPatience is how long what runs has to end.
const endPatience = 5 * time.Second

// slow is a figure that is dear to find out: that is done beside, when somebody asks and what is known has become old.
type slow[T any] struct {
	mu    sync.Mutex
	value T
	due   time.Time
	busy  chan struct{} // closed when what is being found out is known
	since time.Time     // that is being found out
}

// patient is how long who asks waits for a figure that is not known yet, or is old, and allPatient how long for the
// figures of all pods.
const patient, allPatient = 300 * time.Millisecond, time.Second

// budget is how long somebody waits who asks for several figures, one after the other: for each an equal part of what
// is left, so that pods that cannot be counted in a moment hide none of those after them, nor keep the answer.
type budget struct {
	until time.Time
	left  int // figures
}

func newBudget(figures int) *budget { return &budget{time.Now().Add(allPatient), figures} }

// next is how long the next figure is waited for.
func (b *budget) next() time.Duration {
	part := time.Until(b.until) / time.Duration(max(b.left, 1))
	b.left--
	return min(part, patient)
}

// idleShare keeps what finds out from taking more than that part of a core.
const idleShare = 20

// get returns what is known, and waits that long at most for what is being found out.
func (s *slow[T]) get(a *aside, every, wait time.Duration, find func(context.Context) T) T {
	s.mu.Lock()
	if s.busy == nil && time.Now().After(s.due) && a.ctx.Err() == nil {
		busy := make(chan struct{})
		s.busy, s.since = busy, time.Now()
		a.wait.Go(func() {
			began := time.Now()
			v := find(a.ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.value, s.busy = v, nil
			s.due = time.Now().Add(max(every, idleShare*time.Since(began)))
			close(busy)
		})
	}
	busy, left := s.busy, min(time.Until(s.since.Add(patient)), wait)
	s.mu.Unlock()
	if busy != nil && left > 0 { // what takes longer is waited for once
		select {
		case <-busy:
		case <-time.After(left):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// Disk is what files take, and what there is where they are. Bytes are those of blocks, as du counts them.
type Disk struct {
	Time                time.Time
	Used, InodesUsed    uint64
	Capacity, Available uint64
	Inodes, InodesFree  uint64
	Known               bool
	Own                 bool   // it is a file system of its own
	Claim               string // name of the claim whose volume it is
	Abnormal            *bool  // its driver says that it is not well; nil: it does not say
}

// disk is all of a pod.
type disk struct {
	volumes map[string]Disk
	logs    map[string]Disk // by container
	rest    Disk            // what containers write into files of the pod's directory: /etc/hosts, termination messages
}

func (d *Disk) add(more Disk) {
	d.Used += more.Used
	d.InodesUsed += more.InodesUsed
}

// diskEvery is how often a pod's files are counted, while somebody asks.
const diskEvery = time.Minute

// countPatience is how long the files of a volume may take to be counted.
const countPatience = 10 * time.Minute

// disk counts the pod's files.
func (c *Collector) disk(p *Pod, wait time.Duration) disk {
	pod := p.Pod
	return p.state.disk.get(c.aside, diskEvery, wait, func(ctx context.Context) disk {
		out := disk{volumes: map[string]Disk{}, logs: map[string]Disk{}}
		base := filepath.Join(c.cfg.RootDir, "pods", string(pod.UID), "volumes")
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if d, ok := c.volume(ctx, p, v, base); ok {
				d.Claim = claimOf(pod, v)
				out.volumes[v.Name] = d
			}
		}
		logs := spec.LogDirectory(c.cfg.LogDir, pod)
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if d, ok := count(ctx, filepath.Join(logs, list[i].Name)); ok {
					d.statfs(logs, false)
					out.logs[list[i].Name] = d
				}
				messages := filepath.Dir(spec.MessageFile(c.cfg.RootDir, string(pod.UID), list[i].Name, 0))
				if d, ok := count(ctx, messages); ok {
					out.rest.add(d)
				}
			}
		}
		var hosts unix.Stat_t
		if unix.Lstat(spec.HostsFile(c.cfg.RootDir, string(pod.UID)), &hosts) == nil {
			out.rest.add(Disk{Used: uint64(hosts.Blocks) * 512, InodesUsed: 1})
		}
		return out
	})
}

// answers is how long a file system has to say that it is there, and to notice that nobody waits for it any more.
const answers = 10 * time.Second

// volume is what a pod's volume takes; false: nothing is known of it. One that is on something that does not answer
// holds up nothing but itself.
func (c *Collector) volume(ctx context.Context, p *Pod, v *corev1.Volume, base string) (Disk, bool) {
	if c.cfg.Volume != nil {
		if d, ok := c.cfg.Volume(ctx, p.Pod, v.Name); ok {
			return d, d.Known || d.Abnormal != nil
		}
	}
	of := filepath.Join(base, v.Name)
	probing, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	path, err := patience.Ask(probing, &c.calls, of, 0, func() (string, error) {
		at := volumePath(base, v.Name)
		var st unix.Statfs_t
		if at != "" {
			_ = unix.Statfs(at, &st) // it answers, whatever it says
		}
		return at, nil
	})
	if err != nil {
		return Disk{}, false
	}
	most := countPatience
	if path == "" { // nothing is counted
		most = answers
	}
	ctx, cancel = context.WithTimeout(ctx, most)
	defer cancel()
	d, err := patience.Ask(ctx, &c.calls, of, answers, func() (Disk, error) {
		if path == "" && claimOf(p.Pod, v) != "" {
			return c.claimed(p, v.Name), nil
		}
		if path == "" {
			return Disk{}, nil
		}
		return volume(ctx, path), nil
	})
	return d, err == nil && (path != "" || d.Known)
}

// claimOf is the claim whose volume it is; "" = none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return object.ClaimName(pod, v.Name)
	}
	return ""
}

// claimed asks the file system of a claimed volume that is somewhere on the node, where a container has it. It is that
// of the disk: the files of a volume can be more than can be counted.
func (c *Collector) claimed(p *Pod, name string) Disk {
	for i := range p.Containers {
		r := &p.Containers[i]
		if r.Spec == nil {
			continue
		}
		line, _, _ := bytes.Cut(pids(c.cfg.Groups, r.Path), []byte("\n"))
		pid := atoi(line)
		at := slices.IndexFunc(r.Spec.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
		if at < 0 || pid == 0 {
			continue
		}
		if d, ok := statIn(pid, r.Spec.VolumeMounts[at].MountPath); ok {
			return d
		}
	}
	return Disk{}
}

// statIn asks the file system at a path as a process sees it. What the container has for links must not lead out of it.
func statIn(pid int, path string) (Disk, bool) {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Disk{}, false
	}
	defer unix.Close(root)
	fd, err := openat.Open(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return Disk{}, false
	}
	defer unix.Close(fd)
	d := Disk{Time: time.Now(), Own: true}
	d.Known = d.statfs("/proc/self/fd/"+strconv.Itoa(fd), true)
	return d, d.Known
}

// volumePath finds the volume's directory: which plugin made it is part of its path. One of the host is nowhere here,
// and is not the pod's use.
func volumePath(base, name string) string {
	plugins, err := os.ReadDir(base)
	if err != nil {
		return ""
	}
	for _, p := range plugins {
		path := filepath.Join(base, p.Name(), name)
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			return path
		}
	}
	return ""
}

// volume asks the file system where the volume is one of its own, and counts its files elsewhere.
func volume(ctx context.Context, path string) Disk {
	var here, above unix.Stat_t
	d := Disk{Time: time.Now()}
	if unix.Stat(path, &here) != nil || unix.Stat(filepath.Dir(path), &above) != nil {
		return d
	}
	if here.Dev != above.Dev {
		d.Own, d.Known = true, d.statfs(path, true)
		return d
	}
	d, _ = count(ctx, path)
	d.statfs(path, false)
	return d
}

// statfs fills in what there is where path is, and what is used of it if that is to be this one's use. It says whether
// it could.
func (d *Disk) statfs(path string, used bool) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return false
	}
	size := uint64(st.Bsize)
	d.Capacity, d.Available = st.Blocks*size, st.Bavail*size
	d.Inodes, d.InodesFree = st.Files, st.Ffree
	if used {
		d.Used, d.InodesUsed = (st.Blocks-st.Bfree)*size, st.Files-st.Ffree
	}
	return true
}

// count adds up the blocks of the files below dir: each hard link once, nothing of other mounts, no link followed.
func count(ctx context.Context, dir string) (Disk, bool) {
	d := Disk{Time: time.Now()}
	u, err := filetree.Count(ctx, dir)
	d.Used, d.InodesUsed = u.Bytes, u.Inodes
	// What could be counted is used in any case; a limit is not lifted by a directory that cannot be read.
	d.Known = ctx.Err() == nil && (err == nil || u.Inodes > 0)
	return d, d.Known
}
