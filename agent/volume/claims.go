package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/record"
)

// claimsFile says which PersistentVolumes the claims of a pod's ephemeral volumes are bound to, by volume. It is written before anything of
// the volume is made, and goes with the pod's directory: that releases them.
const claimsFile = "claims.json"

// Bind returns the name of the PersistentVolume that the pod's ephemeral volume has. One that has none yet gets what choose returns,
// which is told what the volumes of all pods have.
func (m *Manager) Bind(uid types.UID, volume string, choose func(taken map[string]bool) (string, error)) (string, error) {
	dir, err := m.podDir(uid)
	if err != nil {
		return "", err
	}
	m.claims.Lock()
	defer m.claims.Unlock()
	bound, err := readClaims(dir)
	if err != nil {
		return "", err
	}
	if name := bound[volume]; name != "" {
		return name, nil
	}
	taken, err := m.taken()
	if err != nil {
		return "", err
	}
	name, err := choose(taken)
	if err != nil {
		return "", err
	}
	if bound == nil {
		bound = map[string]string{}
	}
	bound[volume] = name
	return name, record.Write(filepath.Join(dir, claimsFile), bound)
}

// taken are the PersistentVolumes that the ephemeral volumes of pods have.
func (m *Manager) taken() (map[string]bool, error) {
	taken := map[string]bool{}
	err := m.eachPod(func(dir string) error {
		bound, err := readClaims(dir)
		for _, name := range bound {
			taken[name] = true
		}
		return err
	})
	return taken, err
}

// eachPod calls fn with the directory of every pod that has one, until it fails.
func (m *Manager) eachPod(fn func(dir string) error) error {
	pods, err := m.Pods()
	if err != nil {
		return err
	}
	for _, uid := range pods {
		dir, err := m.podDir(uid)
		if err != nil {
			return err
		}
		if err := fn(dir); err != nil {
			return err
		}
	}
	return nil
}

func readClaims(dir string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, claimsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var bound map[string]string
	// After a power cut a record may be empty, which says that nothing was made yet of what it was to tell.
	if err == nil && len(data) > 0 {
		if err = json.Unmarshal(data, &bound); err != nil {
			err = fmt.Errorf("%w: %s: %w; it goes with its pod", errDamaged, filepath.Join(dir, claimsFile), err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read which volumes the pod has: %w", err)
	}
	return bound, nil
}
