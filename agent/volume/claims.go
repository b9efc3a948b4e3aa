package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/atomicfile"
)

// claimsDir says which PersistentVolumes the claims of a pod's ephemeral volumes are bound to: claims/<volume>/<its
// PersistentVolume>, a file without content. Names are made or not, so that there is nothing of a record that could be
// damaged, and each volume has one of its own. It is written before anything of the volume is made, and goes with the
// pod's directory: that releases them.
const claimsDir = "claims"

// claimsFile is where earlier versions kept that of all volumes of a pod. It is read as long as the pod is there.
const claimsFile = "claims.json"

// binding is one of these records.
type binding struct{ volume, name string }

// Taken are the PersistentVolumes that the ephemeral volumes of all pods have.
type Taken struct {
	Names map[string]bool
	// Unknown are the pods of which nobody can tell what else they have, since a record cannot be read.
	Unknown []types.UID
}

// Bind returns the name of the PersistentVolume that the pod's ephemeral volume has. One that has none yet gets what
// choose returns, which is told what the volumes of all pods have.
func (m *Manager) Bind(uid types.UID, volume string, choose func(Taken) (string, error)) (string, error) {
	dir, err := m.root.Dir(uid)
	if err != nil {
		return "", err
	}
	m.claims.Lock()
	defer m.claims.Unlock()
	bound, err := readClaims(dir)
	for _, b := range bound {
		if b.volume == volume {
			return b.name, nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("read which volumes the pod has: %w", err)
	}
	taken, err := m.taken()
	if err != nil {
		return "", err
	}
	name, err := choose(taken)
	if err != nil {
		return "", err
	}
	if err := writeClaim(dir, binding{volume, name}); err != nil {
		return "", fmt.Errorf("record which volumes the pod has: %w", err)
	}
	return name, nil
}

// Bound is the PersistentVolume that the pod's ephemeral volume has; "": none yet, or nobody knows.
func (m *Manager) Bound(uid types.UID, volume string) string {
	dir, err := m.root.Dir(uid)
	if err != nil {
		return ""
	}
	bound, _ := readClaims(dir) // as far as that can be told
	for _, b := range bound {
		if b.volume == volume {
			return b.name
		}
	}
	return ""
}

func (m *Manager) taken() (Taken, error) {
	taken := Taken{Names: map[string]bool{}}
	err := m.root.Each(func(dir string) error {
		bound, err := readClaims(dir)
		for _, b := range bound {
			taken.Names[b.name] = true
		}
		if err != nil { // that pod hears why; the others go on
			taken.Unknown = append(taken.Unknown, types.UID(filepath.Base(dir)))
		}
		return nil
	})
	return taken, err
}

func writeClaim(dir string, b binding) error {
	if !kind.IsName(b.volume) || !kind.IsName(b.name) {
		return fmt.Errorf("%q of volume %q is no name of a persistentvolume", b.name, b.volume)
	}
	dir = filepath.Join(dir, claimsDir)
	for _, d := range []string{dir, filepath.Join(dir, b.volume)} {
		if err := os.Mkdir(d, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, b.volume, b.name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	// A PersistentVolume outlives the machine's loss of power with what is on it, and belongs to that claim: the names
	// go on the disk, from the lowest up, before anything is done by them.
	for _, d := range []string{filepath.Join(dir, b.volume), dir, filepath.Dir(dir)} {
		if err := atomicfile.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}

// readClaims returns what the volumes of the pod that has the directory are bound to; with an error, as far as that
// can be told.
func readClaims(dir string) ([]binding, error) {
	out, earlier := readClaimsFile(filepath.Join(dir, claimsFile))
	dir = filepath.Join(dir, claimsDir)
	volumes, err := namesIn(dir)
	for _, v := range volumes {
		names, namesErr := namesIn(filepath.Join(dir, v))
		err = errors.Join(err, namesErr)
		for _, n := range names {
			out = append(out, binding{v, n})
		}
	}
	return out, errors.Join(earlier, err)
}

func namesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err
}

func readClaimsFile(path string) ([]binding, error) {
	data, err := os.ReadFile(path)
	// After a power cut a record may be empty, which says that nothing was made yet of what it was to tell.
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var bound map[string]string
	if err := json.Unmarshal(data, &bound); err != nil {
		return nil, fmt.Errorf("%w: %s: %w; it goes with its pod", kind.ErrDamaged, path, err)
	}
	var out []binding
	for _, v := range slices.Sorted(maps.Keys(bound)) {
		out = append(out, binding{v, bound[v]})
	}
	return out, nil
}
