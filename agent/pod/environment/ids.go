package environment

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/record"
)

// A pod with hostUsers: false has a range of ids to itself. Where nothing else is said there are as many as kubelet
// has: 110 of 65536 ids each, beginning behind those of the node's own users.
const (
	idsOfPod  = 1 << 16
	firstID   = 1 << 16
	podsOfIDs = 110
)

// idPool gives out the ranges. Which are in use the pods' directories say, where each pod's is written down before
// anything has it; so a range is free again when all of its pod is gone, whoever was running then.
type idPool struct {
	rootDir string
	etc     string // where subuid and subgid are

	mu sync.Mutex // from looking for a free range until it is written down
}

// idsFile is in a pod's directory.
const idsFile = "ids.json"

func (p *idPool) file(uid types.UID) string {
	return filepath.Join(p.rootDir, "pods", string(uid), idsFile)
}

// take returns the pod's range, the one it has or a free one. The pod's directory is there.
func (p *idPool) take(uid types.UID) (*spec.IDs, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ids := readIDs(p.file(uid)); ids != nil {
		return ids, nil
	}
	used, err := p.used()
	if err != nil {
		return nil, fmt.Errorf("find free user ids: %w", err)
	}
	first, count, err := p.reserved()
	if err != nil {
		return nil, fmt.Errorf("find free user ids: %w", err)
	}
	for i := range count {
		ids := spec.IDs{First: first + i*idsOfPod, Length: idsOfPod}
		if used[ids.First] {
			continue
		}
		if err := record.Write(p.file(uid), ids); err != nil {
			return nil, fmt.Errorf("write down user ids: %w", err)
		}
		return &ids, nil
	}
	return nil, fmt.Errorf("no user ids are left for another pod with hostUsers: false, there are %d ranges from %d on",
		count, first)
}

// used are the first ids of all ranges that a pod has.
func (p *idPool) used() (map[uint32]bool, error) {
	files, err := filepath.Glob(filepath.Join(p.rootDir, "pods", "*", idsFile))
	if err != nil {
		return nil, err
	}
	used := map[uint32]bool{}
	for _, f := range files {
		if ids := readIDs(f); ids != nil {
			used[ids.First] = true
		}
	}
	return used, nil
}

// readIDs returns nil where nothing can be read: what was cut off by a power failure has no pod that runs.
func readIDs(file string) *spec.IDs {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	ids := &spec.IDs{}
	if json.Unmarshal(data, ids) != nil || ids.Length == 0 {
		return nil
	}
	return ids
}

// reserved is what the node has put aside for pods: the range of the user "kubelet" in subuid(5) and subgid(5), if it
// is in either.
func (p *idPool) reserved() (first, count uint32, err error) {
	uids, err := p.subordinate("subuid")
	if err != nil {
		return 0, 0, err
	}
	gids, err := p.subordinate("subgid")
	if err != nil {
		return 0, 0, err
	}
	switch {
	case uids == nil && gids == nil:
		return firstID, podsOfIDs, nil
	case uids == nil || gids == nil || *uids != *gids:
		return 0, 0, errors.New("subuid and subgid differ in the range of the user kubelet")
	case uids.First < firstID || uids.First%idsOfPod != 0 || uids.Length < idsOfPod:
		return 0, 0, fmt.Errorf("the range of the user kubelet in subuid, %d from %d on, is not of whole pods: both have to be multiples of %d",
			uids.Length, uids.First, idsOfPod)
	}
	return uids.First, uids.Length / idsOfPod, nil
}

func (p *idPool) subordinate(name string) (*spec.IDs, error) {
	data, err := os.ReadFile(filepath.Join(p.etc, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseSubordinate(data), nil
}

// parseSubordinate finds the first range of the user kubelet. Lines are "user:first:count".
func parseSubordinate(data []byte) *spec.IDs {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		f := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(f) != 3 || f[0] != "kubelet" {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		length, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 == nil && err2 == nil && first+length <= 1<<32-1 {
			return &spec.IDs{First: uint32(first), Length: uint32(length)}
		}
	}
	return nil
}

// takeIDs gives the pod its ids, before the sandbox that has them.
func (f *files) takeIDs() (err error) {
	if _, features := f.cfg.Node.Handler(f.pod); !features.GetUserNamespaces() {
		return errors.New("hostUsers: false is asked for, but the runtime cannot give a pod a user namespace of its own")
	}
	f.ids, err = f.pool.take(f.pod.UID)
	return err
}
