package pinning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/record"
)

// journalVersion is that of the file's format.
const journalVersion = 1

// journal is the file of the assignments. The policies are in it for people: what was given under one policy is judged
// by the machine and the configuration that are there now.
type journal struct {
	Version      int           `json:"version"`
	CPUPolicy    string        `json:"cpuPolicy"`
	MemoryPolicy string        `json:"memoryPolicy"`
	Pods         []*assignment `json:"pods"`
}

// book has what was given to whom, and the file that this is in. Who has the Manager's lock may use it.
type book struct {
	alloc  *allocator
	pods   []*assignment             // in the order of their admission
	former map[types.UID]*assignment // of an agent that pinned, for one that does not any more
}

func (b *book) find(uid types.UID) *assignment {
	for _, a := range b.pods {
		if a.UID == uid {
			return a
		}
	}
	return nil
}

func (b *book) others(uid types.UID) []*assignment {
	return slices.DeleteFunc(slices.Clone(b.pods), func(a *assignment) bool { return a.UID == uid })
}

// keep writes down what a pod was given.
func (b *book) keep(pod *corev1.Pod, got []given) (changed bool, err error) {
	had := b.find(pod.UID)
	if len(got) == 0 && had == nil {
		return false, nil
	}
	to := b.others(pod.UID)
	if len(got) > 0 {
		to = append(to, &assignment{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Containers: got})
	}
	err = record.Change(&b.pods, to, b.save)
	return err == nil, err
}

// drop takes back what is no longer to be given.
func (b *book) drop(gone func(*assignment) bool) (dropped bool, err error) {
	return record.Drop(&b.pods, gone, b.save)
}

// save replaces the file as a whole: it is what it was or what it is to be, whenever the agent is killed. It need not
// outlive the machine, where no container would either.
func (b *book) save() error {
	j := journal{Version: journalVersion, Pods: slices.Clone(b.pods)}
	// Containers that are still where nobody gives anything any more have to be found by the next agent too.
	for uid, a := range b.former {
		if b.find(uid) == nil {
			j.Pods = append(j.Pods, a)
		}
	}
	j.CPUPolicy, j.MemoryPolicy = b.alloc.policies()
	if err := record.Write(b.alloc.cfg.File, j); err != nil {
		return fmt.Errorf("write assignments: %w", err)
	}
	return nil
}

// load reads what an agent before this one gave out, and keeps of it what can still be had: what cannot is given again
// when its pod is admitted, and its containers are moved. Of another policy nothing is left over, whatever was set
// before.
func (b *book) load() error {
	j, bad, err := record.Load(b.alloc.cfg.File, journalVersion, decode)
	if err != nil {
		return fmt.Errorf("read assignments: %w", err)
	}
	if bad != nil {
		b.alloc.cfg.Log.Warn("assignments cannot be read and are made again", "file", b.alloc.cfg.File, "error", bad)
	}
	if j == nil {
		return nil
	}
	for _, a := range j.Pods {
		if why := b.alloc.outdated(a, b.pods); why != "" {
			b.alloc.cfg.Log.Warn("what a pod was given is given again", "pod", a.Namespace+"/"+a.Name, "uid", string(a.UID), "why", why)
			b.former[a.UID] = a
			continue
		}
		b.pods = append(b.pods, a)
	}
	return nil
}

// forget forgets what an agent before this one gave out. Where nothing is given out any more the file goes too.
func (b *book) forget() error {
	if b.alloc.cfg.Enabled() {
		if err := b.save(); err != nil {
			return err
		}
	} else if err := os.Remove(b.alloc.cfg.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove assignments: %w", err)
	}
	clear(b.former)
	return nil
}

// decode reads the file.
func decode(data []byte) (*journal, error) {
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, err
	}
	for _, a := range j.Pods {
		if a == nil || a.UID == "" {
			return nil, errors.New("a pod in it has no uid")
		}
		for i := range a.Containers {
			g := &a.Containers[i]
			if _, err := cpuset.Parse(g.CPUs); err != nil {
				return nil, fmt.Errorf("CPUs of %s: %w", a.UID, err)
			}
			for _, b := range g.Memory {
				for _, id := range b.Nodes {
					if id < 0 || id > 63 || b.Bytes < 0 {
						return nil, fmt.Errorf("memory of %s cannot be", a.UID)
					}
				}
			}
		}
	}
	return j, nil
}
