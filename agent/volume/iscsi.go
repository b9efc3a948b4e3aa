package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/record"
)

// iscsiPlugin holds the mounts of disks of iSCSI targets.
const iscsiPlugin = "kubernetes.io~iscsi"

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
	device, err := m.attach(ctx, adm, dir, v.Name, s, disk, chap)
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
func (m *Manager) attach(
	ctx context.Context, adm *iscsiadm, dir, volume string, s *corev1.ISCSIPersistentVolumeSource, disk iscsiDisk, chap map[string][]byte,
) (string, error) {
	has, err := readDisks(dir)
	if err != nil {
		return "", err
	}
	// A PersistentVolume may say something else than at an earlier try.
	if before, ok := has[volume]; ok && (before.IQN != disk.IQN || before.LUN != disk.LUN || before.Iface != disk.Iface || !slices.Equal(before.Portals, disk.Portals)) {
		if err := m.release(ctx, adm, dir, volume); err != nil {
			return "", err
		}
	}
	unlock := m.targets.lock(disk.IQN)
	defer unlock()
	if s.DiscoveryCHAPAuth {
		if disk.Discovered, err = m.ownDiscoveries(ctx, adm, disk.Portals); err != nil {
			return "", err
		}
	}
	if err := m.keepDisk(dir, volume, disk); err != nil {
		return "", fmt.Errorf("record disk: %w", err)
	}
	if device, err := m.attached(ctx, adm, dir, volume, disk); err != nil || device != "" {
		return device, err
	}
	if err := m.makeIface(ctx, adm, disk.Iface, s); err != nil {
		return "", err
	}
	var failed []error
	for _, portal := range disk.Portals {
		id, err := m.login(ctx, adm, disk, portal, s, chap)
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
		if err != nil || needed {
			return errors.Join(err, m.forget(dir, volume))
		}
		return errors.Join(m.detach(disk), m.forget(dir, volume))
	}
	if err := m.logout(ctx, adm, disk); err != nil {
		return err
	}
	// Records of targets that are made with an interface go before it does.
	if has, err := adm.hasIface(ctx, disk.Iface); err != nil {
		return err
	} else if has {
		if err := adm.deleteNode(ctx, disk, ""); err != nil {
			return err
		}
	}
	for _, portal := range disk.Discovered {
		needed, err := m.others(dir, volume, func(d iscsiDisk) bool { return slices.Contains(d.Discovered, portal) })
		if err != nil {
			return err
		}
		if !needed {
			if err := adm.deleteDiscovery(ctx, portal); err != nil {
				return err
			}
		}
	}
	if err := m.removeIface(ctx, adm, dir, volume, disk.Iface); err != nil {
		return err
	}
	return m.forget(dir, volume)
}

// others says whether a disk of another volume, of this pod or of any other, is as asked for.
func (m *Manager) others(dir, volume string, like func(iscsiDisk) bool) (bool, error) {
	pods, err := m.Pods()
	if err != nil {
		return false, err
	}
	for _, uid := range pods {
		other, err := m.podDir(uid)
		if err != nil {
			return false, err
		}
		disks, err := readDisks(other)
		if err != nil {
			return false, err
		}
		for name, d := range disks {
			if (other != dir || name != volume) && like(d) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (m *Manager) keepDisk(dir, volume string, disk iscsiDisk) error {
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

func (m *Manager) forget(dir, volume string) error {
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
	var disks map[string]iscsiDisk
	if err == nil {
		err = json.Unmarshal(data, &disks)
	}
	if err != nil {
		return nil, fmt.Errorf("read which iSCSI disks the pod has: %w", err)
	}
	return disks, nil
}
