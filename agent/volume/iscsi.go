package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// iscsiPlugin holds the mounts of disks of iSCSI targets.
const iscsiPlugin = "kubernetes.io~iscsi"

// locks are mutexes by name.
type locks struct {
	mu     sync.Mutex
	byName map[string]*sync.Mutex
}

func (l *locks) lock(name string) (unlock func()) {
	l.mu.Lock()
	if l.byName == nil {
		l.byName = map[string]*sync.Mutex{}
	}
	one := l.byName[name]
	if one == nil {
		one = new(sync.Mutex)
		l.byName[name] = one
	}
	l.mu.Unlock()
	one.Lock()
	return one.Unlock
}

// iscsiVolume is a volume of a pod that is to be a disk.
type iscsiVolume struct {
	dir, name string // the pod's directory, and what the pod calls it
	source    *corev1.ISCSIPersistentVolumeSource
	disk      iscsiDisk
	block     bool              // the disk itself is the volume, without a file system
	secret    map[string][]byte // for CHAP
}

// inlineISCSI is a volume of a pod as a PersistentVolume has it.
func inlineISCSI(s *corev1.ISCSIVolumeSource) *corev1.ISCSIPersistentVolumeSource {
	return &corev1.ISCSIPersistentVolumeSource{
		TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: s.Lun, ISCSIInterface: s.ISCSIInterface, FSType: s.FSType, ReadOnly: s.ReadOnly,
		Portals: s.Portals, DiscoveryCHAPAuth: s.DiscoveryCHAPAuth, SessionCHAPAuth: s.SessionCHAPAuth, InitiatorName: s.InitiatorName,
	}
}

// setupISCSI logs in to the target where nobody has yet, and mounts the file system of the disk, which is made when there is nothing on it. With
// block the disk itself is the volume.
func (m *Manager) setupISCSI(
	ctx context.Context, dir string, pod *corev1.Pod, v *corev1.Volume, s *corev1.ISCSIPersistentVolumeSource, options []string, block bool, chap map[string][]byte,
) (string, error) {
	at := filepath.Join(dir, volumesDir, iscsiPlugin, v.Name)
	if mounted, err := isMount(at); err != nil || mounted {
		return at, err
	}
	if err := checkNames(s); err != nil {
		return "", err
	}
	portals, err := portalsOf(s)
	if err != nil {
		return "", err
	}
	adm, err := findISCSI()
	if err != nil {
		return "", err
	}
	disk := iscsiDisk{IQN: s.IQN, LUN: s.Lun, Iface: m.ifaceName(s), Portals: portals}
	device, err := m.attach(ctx, adm, iscsiVolume{dir, v.Name, s, disk, block, chap})
	if err != nil {
		return "", fmt.Errorf("iSCSI target %s: %w", s.IQN, err)
	}
	if block {
		return device, nil
	}
	if err := m.mountDevice(ctx, device, at, s.FSType, options, s.ReadOnly); err != nil {
		return "", fmt.Errorf("LUN %d of iSCSI target %s (%s): %w", s.Lun, s.IQN, device, err)
	}
	if s.ReadOnly {
		return at, nil
	}
	return at, takeGroup(pod, at)
}

// checkNames refuses what would lead elsewhere, or be more than a name, in the files of the initiator.
func checkNames(s *corev1.ISCSIPersistentVolumeSource) error {
	names := map[string]string{"iqn": s.IQN, "iscsiInterface": s.ISCSIInterface}
	if s.InitiatorName != nil {
		names["initiatorName"] = *s.InitiatorName
	}
	for field, name := range names {
		if name == "" || name == "." || name == ".." || len(name) > 223 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
			return fmt.Errorf("iscsi.%s %q: must be at most 223 printable ASCII characters without spaces and slashes", field, name)
		}
	}
	return nil
}

// portalsOf are the addresses with ports of the target's portals.
func portalsOf(s *corev1.ISCSIPersistentVolumeSource) ([]string, error) {
	var out []string
	for _, text := range append([]string{s.TargetPortal}, s.Portals...) {
		portal, err := parsePortal(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, portal) {
			out = append(out, portal)
		}
	}
	return out, nil
}

// iscsiPort is the port of iSCSI targets (RFC 7143).
const iscsiPort = 3260

func parsePortal(text string) (string, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.AddrPortFrom(addr, iscsiPort).String(), nil
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		addr, addrErr := netip.ParseAddr(host)
		n, portErr := strconv.ParseUint(port, 10, 16)
		if addrErr == nil && addr.Zone() == "" && portErr == nil && n > 0 {
			return netip.AddrPortFrom(addr, uint16(n)).String(), nil
		}
	}
	return "", fmt.Errorf("iSCSI portal %q: must be an IP address (without a zone), or ADDRESS:PORT", text)
}

// ifaceName is the interface record of the sessions of those that ask for the same. The agent never uses anybody else's: what it makes and
// removes with its own, such as records of targets, cannot be an administrator's then.
func (m *Manager) ifaceName(s *corev1.ISCSIPersistentVolumeSource) string {
	name := ""
	if s.InitiatorName != nil {
		name = *s.InitiatorName
	}
	sum := sha256.Sum256([]byte(s.ISCSIInterface + "\x00" + name))
	return m.ifacePrefix() + hex.EncodeToString(sum[:4])
}

// ifacePrefix tells this agent's interface records from those of one with another root directory.
func (m *Manager) ifacePrefix() string {
	sum := sha256.Sum256([]byte(m.cfg.Root))
	return "berth-" + hex.EncodeToString(sum[:4]) + "-"
}

// attach records the disk as one of the pod's and returns its device.
func (m *Manager) attach(ctx context.Context, adm *iscsiadm, v iscsiVolume) (string, error) {
	if device, err := m.replace(ctx, adm, v); err != nil || device != "" {
		return device, err
	}
	disk := v.disk
	unlock := m.targets.lock(disk.IQN)
	defer unlock()
	if v.source.DiscoveryCHAPAuth {
		var err error
		if disk.Discovered, err = m.ownDiscoveries(ctx, adm, disk.Portals); err != nil {
			return "", err
		}
	}
	if err := keepDisk(v.dir, v.name, disk); err != nil {
		return "", fmt.Errorf("record disk: %w", err)
	}
	if device, err := m.attached(ctx, adm, v.dir, v.name, disk); err != nil || device != "" {
		return device, err
	}
	if err := m.makeIface(ctx, adm, disk.Iface, v.source); err != nil {
		return "", err
	}
	var failed []error
	for _, portal := range disk.Portals {
		id, err := m.login(ctx, adm, disk, portal, v)
		if err == nil {
			return m.disk(ctx, id, disk.LUN)
		}
		failed = append(failed, fmt.Errorf("log in at %s: %w", portal, err))
		if err := errors.Join(m.logout(ctx, adm, disk), adm.deleteNode(ctx, disk, portal)); err != nil {
			return "", errors.Join(append(failed, err)...)
		}
	}
	return "", errors.Join(failed...)
}

// replace releases the disk that the volume was at an earlier try, when its PersistentVolume says something else now. A disk that containers may
// have been given stays the pod's, as a file system does that is mounted, and its device is returned: who has it open does not show.
func (m *Manager) replace(ctx context.Context, adm *iscsiadm, v iscsiVolume) (device string, err error) {
	has, err := readDisks(v.dir)
	if err != nil {
		return "", err
	}
	before, ok := has[v.name]
	if !ok || before.serves(v) {
		return "", nil
	}
	if v.block {
		sessions, err := m.sessions(before.IQN)
		if err != nil {
			return "", err
		}
		for _, s := range sessions {
			if device, err := m.deviceOf(s.id, before.LUN); err != nil || device != "" {
				return device, err
			}
		}
	}
	return "", m.release(ctx, adm, v.dir, v.name)
}

// serves says whether what was recorded is what the volume is to be. What it has discovered portals for is not asked for anew as long as they
// are to be discovered.
func (d iscsiDisk) serves(v iscsiVolume) bool {
	return d.IQN == v.disk.IQN && d.LUN == v.disk.LUN && d.Iface == v.disk.Iface && slices.Equal(d.Portals, v.disk.Portals) &&
		(len(d.Discovered) == 0 || v.source.DiscoveryCHAPAuth)
}

// attached is the device of a disk by a session that is there, "" when there is none. No disk is ever made two devices of, whose caches know
// nothing of each other: file systems on both would be destroyed.
func (m *Manager) attached(ctx context.Context, adm *iscsiadm, dir, volume string, disk iscsiDisk) (string, error) {
	sessions, err := m.sessions(disk.IQN)
	if err != nil {
		return "", err
	}
	var own *session
	for _, s := range sessions {
		ours := s.iface == disk.Iface
		if ours {
			own = &s
		}
		switch device, err := m.deviceOf(s.id, disk.LUN); {
		case err != nil:
			return "", err
		case device == "":
		case !ours && strings.HasPrefix(s.iface, m.ifacePrefix()):
			return "", fmt.Errorf("LUN %d is used already with another initiatorName or iscsiInterface: they must be the same for one disk", disk.LUN)
		case s.state != loggedIn:
			return "", fmt.Errorf("session %d is %s: the disk is not used until the initiator has brought it back", s.id, s.state)
		default:
			return device, nil
		}
	}
	if own == nil {
		return "", nil
	}
	if own.state == loggedIn {
		return m.disk(ctx, own.id, disk.LUN)
	}
	shared, err := m.others(dir, volume, func(d iscsiDisk) bool { return d.IQN == disk.IQN && d.Iface == disk.Iface })
	if err != nil {
		return "", err
	}
	if shared {
		return "", fmt.Errorf("session %d is %s: other pods wait for the initiator to bring it back", own.id, own.state)
	}
	return "", m.logout(ctx, adm, disk)
}

// releaseISCSI undoes what was done for the disks of a pod, whose file systems are unmounted by now.
func (m *Manager) releaseISCSI(ctx context.Context, dir string) error {
	disks, err := readDisks(dir)
	if errors.Is(err, errDamaged) {
		// The pod goes all the same: its file systems are unmounted, and what else there was nobody can tell any more.
		m.log.Error("sessions of iSCSI disks may be left on the node", "error", err)
		return nil
	}
	if err != nil || len(disks) == 0 {
		return err
	}
	adm, err := findISCSI()
	if err != nil {
		return err
	}
	for _, volume := range slices.Sorted(maps.Keys(disks)) {
		if err := m.release(ctx, adm, dir, volume); err != nil {
			return fmt.Errorf("release iSCSI target %s: %w", disks[volume].IQN, err)
		}
	}
	return nil
}

// release takes away what only this volume of the pod needs: the disk's device, the session, the records. The record of the volume goes last.
func (m *Manager) release(ctx context.Context, adm *iscsiadm, dir, volume string) error {
	has, err := readDisks(dir)
	if err != nil {
		return err
	}
	disk, ok := has[volume]
	if !ok {
		return nil
	}
	unlock := m.targets.lock(disk.IQN)
	defer unlock()
	target := func(d iscsiDisk) bool { return d.IQN == disk.IQN && d.Iface == disk.Iface }
	shared, err := m.others(dir, volume, target)
	if err != nil {
		return err
	}
	if shared {
		needed, err := m.others(dir, volume, func(d iscsiDisk) bool { return target(d) && d.LUN == disk.LUN })
		if err != nil {
			return err
		}
		if !needed {
			err = m.detach(disk)
		}
		if err != nil {
			return err
		}
	} else if err := m.endSession(ctx, adm, disk); err != nil {
		return err
	}
	for _, portal := range disk.Discovered {
		needed, err := m.others(dir, volume, func(d iscsiDisk) bool { return slices.Contains(d.Discovered, portal) })
		if err == nil && !needed {
			err = adm.deleteDiscovery(ctx, portal)
		}
		if err != nil {
			return err
		}
	}
	if err := m.removeIface(ctx, adm, dir, volume, disk.Iface); err != nil {
		return err
	}
	return forgetDisk(dir, volume)
}

// endSession ends the session that nobody else needs, and removes the records of its target.
func (m *Manager) endSession(ctx context.Context, adm *iscsiadm, disk iscsiDisk) error {
	if err := m.logout(ctx, adm, disk); err != nil {
		return err
	}
	// Records of targets that are made with an interface go before it does, and without it iscsiadm knows none.
	if has, err := adm.hasIface(ctx, disk.Iface); err != nil || !has {
		return err
	}
	return adm.deleteNode(ctx, disk, "")
}
