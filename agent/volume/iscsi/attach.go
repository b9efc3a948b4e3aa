package iscsi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
)

// ifaceName is the interface record of the sessions of those that ask for the same. The agent never uses anybody
// else's: what it makes and removes with its own, such as records of targets, cannot be an administrator's then.
func (k *Kind) ifaceName(s *corev1.ISCSIPersistentVolumeSource) string {
	name := ""
	if s.InitiatorName != nil {
		name = *s.InitiatorName
	}
	sum := sha256.Sum256([]byte(s.ISCSIInterface + "\x00" + name))
	return k.ifacePrefix() + hex.EncodeToString(sum[:4])
}

// ifacePrefix tells this agent's interface records from those of one with another root directory.
func (k *Kind) ifacePrefix() string {
	sum := sha256.Sum256([]byte(string(k.records.Root)))
	return "berth-" + hex.EncodeToString(sum[:4]) + "-"
}

// attach records the disk as one of the pod's and returns its device.
func (k *Kind) attach(ctx context.Context, adm *iscsiadm, v diskVolume) (string, error) {
	if device, err := k.replace(ctx, adm, v); err != nil || device != "" {
		return device, err
	}
	disk := v.disk
	unlock := k.targets.lock(disk.IQN)
	defer unlock()
	if v.source.DiscoveryCHAPAuth {
		var err error
		if disk.Discovered, err = k.ownDiscoveries(ctx, adm, disk.Portals); err != nil {
			return "", err
		}
	}
	if err := k.records.Keep(v.dir, v.name, disk); err != nil {
		return "", fmt.Errorf("record disk: %w", err)
	}
	if device, err := k.attached(ctx, adm, v.dir, v.name, disk); err != nil || device != "" {
		return device, err
	}
	if err := k.makeIface(ctx, adm, disk.Iface, v.source); err != nil {
		return "", err
	}
	var failed []error
	for _, portal := range disk.Portals {
		id, err := k.login(ctx, adm, disk, portal, v)
		if err == nil {
			return k.kernel.disk(ctx, id, disk.LUN)
		}
		failed = append(failed, fmt.Errorf("log in at %s: %w", portal, err))
		if err := errors.Join(k.logout(ctx, adm, disk), adm.deleteNode(ctx, disk, portal)); err != nil {
			return "", errors.Join(append(failed, err)...)
		}
	}
	return "", errors.Join(failed...)
}

// replace releases the disk that the volume was at an earlier try, when its PersistentVolume says something else now. A
// disk that containers may have been given stays the pod's, as a file system does that is mounted, and its device is
// returned: who has it open does not show.
func (k *Kind) replace(ctx context.Context, adm *iscsiadm, v diskVolume) (device string, err error) {
	has, err := k.records.Of(v.dir)
	if err != nil {
		return "", err
	}
	before, ok := has[v.name]
	if !ok || before.serves(v) {
		return "", nil
	}
	if v.block {
		sessions, err := k.kernel.sessions(before.IQN)
		if err != nil {
			return "", err
		}
		for _, s := range sessions {
			if device, err := k.kernel.deviceOf(s.id, before.LUN); err != nil || device != "" {
				return device, err
			}
		}
	}
	return "", k.release(ctx, adm, v.dir, v.name)
}

// serves says whether what was recorded is what the volume is to be. What it has discovered portals for is not asked
// for again as long as they are to be discovered.
func (d diskRecord) serves(v diskVolume) bool {
	same := d.IQN == v.disk.IQN && d.LUN == v.disk.LUN && d.Iface == v.disk.Iface
	return same && slices.Equal(d.Portals, v.disk.Portals) && (len(d.Discovered) == 0 || v.source.DiscoveryCHAPAuth)
}

// attached is the device of a disk by a session that is there, "" when there is none. No disk is ever made two devices
// of, whose caches know nothing of each other: file systems on both would be destroyed.
func (k *Kind) attached(ctx context.Context, adm *iscsiadm, dir, volume string, disk diskRecord) (string, error) {
	sessions, err := k.kernel.sessions(disk.IQN)
	if err != nil {
		return "", err
	}
	var own *session
	for _, s := range sessions {
		ours := s.iface == disk.Iface
		if ours {
			own = &s
		}
		switch device, err := k.kernel.deviceOf(s.id, disk.LUN); {
		case err != nil:
			return "", err
		case device == "":
		case !ours && strings.HasPrefix(s.iface, k.ifacePrefix()):
			return "", fmt.Errorf("LUN %d is used already with another initiatorName or iscsiInterface: they must be the same for one disk",
				disk.LUN)
		case s.state != loggedIn:
			return "", fmt.Errorf("session %d is %s: the disk is not used until the initiator has brought it back", s.id,
				s.state)
		default:
			return device, nil
		}
	}
	if own == nil {
		return "", nil
	}
	if own.state == loggedIn {
		return k.kernel.disk(ctx, own.id, disk.LUN)
	}
	session := func(d diskRecord) bool { return d.IQN == disk.IQN && d.Iface == disk.Iface }
	shared, err := k.records.Others(dir, volume, session)
	if err != nil {
		return "", err
	}
	if shared {
		return "", fmt.Errorf("session %d is %s: other pods wait for the initiator to bring it back", own.id, own.state)
	}
	return "", k.logout(ctx, adm, disk)
}

// Release undoes what was done for the disks of a pod, whose file systems are unmounted by now.
func (k *Kind) Release(ctx context.Context, dir string) error {
	disks, err := k.records.Of(dir)
	if errors.Is(err, kind.ErrDamaged) {
		// The pod goes all the same: its file systems are unmounted, and what else there was nobody can tell any more.
		k.log.Error("sessions of iSCSI disks may be left on the node", "error", err)
		return nil
	}
	if err != nil || len(disks) == 0 {
		return err
	}
	adm, err := findAdm()
	if err != nil {
		return err
	}
	for _, volume := range slices.Sorted(maps.Keys(disks)) {
		if err := k.release(ctx, adm, dir, volume); err != nil {
			return fmt.Errorf("release iSCSI target %s: %w", disks[volume].IQN, err)
		}
	}
	return nil
}

// release takes away what only this volume of the pod needs: the disk's device, the session, the records. The record of
// the volume goes last.
func (k *Kind) release(ctx context.Context, adm *iscsiadm, dir, volume string) error {
	has, err := k.records.Of(dir)
	if err != nil {
		return err
	}
	disk, ok := has[volume]
	if !ok {
		return nil
	}
	unlock := k.targets.lock(disk.IQN)
	defer unlock()
	target := func(d diskRecord) bool { return d.IQN == disk.IQN && d.Iface == disk.Iface }
	shared, err := k.records.Others(dir, volume, target)
	if err != nil {
		return err
	}
	if shared {
		needed, err := k.records.Others(dir, volume, func(d diskRecord) bool { return target(d) && d.LUN == disk.LUN })
		if err != nil {
			return err
		}
		if !needed {
			err = k.kernel.detach(disk)
		}
		if err != nil {
			return err
		}
	} else if err := k.endSession(ctx, adm, disk); err != nil {
		return err
	}
	for _, portal := range disk.Discovered {
		needed, err := k.records.Others(dir, volume, func(d diskRecord) bool { return slices.Contains(d.Discovered, portal) })
		if err == nil && !needed {
			err = adm.deleteDiscovery(ctx, portal)
		}
		if err != nil {
			return err
		}
	}
	if err := k.removeIface(ctx, adm, dir, volume, disk.Iface); err != nil {
		return err
	}
	return k.records.Forget(dir, volume)
}

// endSession ends the session that nobody else needs, and removes the records of its target.
func (k *Kind) endSession(ctx context.Context, adm *iscsiadm, disk diskRecord) error {
	if err := k.logout(ctx, adm, disk); err != nil {
		return err
	}
	// Records of targets that are made with an interface go before it does, and without it iscsiadm knows none.
	if has, err := adm.hasIface(ctx, disk.Iface); err != nil || !has {
		return err
	}
	return adm.deleteNode(ctx, disk, "")
}
