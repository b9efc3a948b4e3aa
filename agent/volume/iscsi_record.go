package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/agent/record"
)

// iscsiFile says which iSCSI disks the volumes of a pod are, by volume. It is written before anything of them is done on the node and goes after
// all of it was undone.
const iscsiFile = "iscsi.json"

// iscsiDisk is a disk of a target, and what it may have left on the node. Those with the same target and interface have a session
// together, which ends with the last of them.
type iscsiDisk struct {
	IQN     string
	LUN     int32
	Iface   string   // the interface record that its session is made with: it is ours alone
	Portals []string // in the order in which they are tried
	// Discovered are the portals for which there are discovery records of ours.
	Discovered []string `json:",omitempty"`
}

// errDamaged is of a record that is there and says nothing.
var errDamaged = errors.New("record is damaged")

// others says whether a disk of another volume, of this pod or of any other, is as asked for.
func (m *Manager) others(dir, volume string, like func(iscsiDisk) bool) (bool, error) {
	found := false
	err := m.eachPod(func(other string) error {
		disks, err := readDisks(other)
		if errors.Is(err, errDamaged) {
			found = true // it may be: what it would share stays
			return nil
		}
		for name, d := range disks {
			found = found || (other != dir || name != volume) && like(d)
		}
		return err
	})
	return found, err
}

func keepDisk(dir, volume string, disk iscsiDisk) error {
	disks, err := readDisks(dir)
	if err != nil {
		return err
	}
	if disks == nil {
		disks = map[string]iscsiDisk{}
	}
	disks[volume] = disk
	return writeDisks(dir, disks)
}

// writeDisks is synced: unlike all else that is recorded, what the initiator keeps in its files outlives the machine's loss of power,
// passwords too.
func writeDisks(dir string, disks map[string]iscsiDisk) error {
	return record.Keep(filepath.Join(dir, iscsiFile), disks)
}

func forgetDisk(dir, volume string) error {
	disks, err := readDisks(dir)
	if err != nil {
		return err
	}
	delete(disks, volume)
	return writeDisks(dir, disks)
}

func readDisks(dir string) (map[string]iscsiDisk, error) {
	data, err := os.ReadFile(filepath.Join(dir, iscsiFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which iSCSI disks the pod has: %w", err)
	}
	var disks map[string]iscsiDisk
	if err := json.Unmarshal(data, &disks); err != nil {
		return nil, fmt.Errorf("read which iSCSI disks the pod has: %w: %s: %w", errDamaged, filepath.Join(dir, iscsiFile), err)
	}
	return disks, nil
}
