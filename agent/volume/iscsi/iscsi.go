// Package iscsi is the kind of volumes that are disks of iSCSI targets. It is complete: nothing is added to it, and
// what is wrong in it is mended.
package iscsi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
)

// plugin is kubelet's name of what makes these volumes.
const plugin = "iscsi"

// Kind are disks of iSCSI targets.
type Kind struct {
	records kind.Records[diskRecord]
	devices *mount.Devices
	log     *slog.Logger
	kernel  kernel

	targets locks      // by name: held while a session is made or ended
	ifaces  sync.Mutex // held while an interface record is made or removed
}

// New returns the kind, whose disks have their file systems mounted by devices.
func New(root kind.Root, devices *mount.Devices, log *slog.Logger) *Kind {
	return &Kind{
		records: kind.Records[diskRecord]{Root: root, File: "iscsi.json", What: "iSCSI disks"}, devices: devices, log: log,
		kernel: kernel{sys: "/sys", dev: "/dev"},
	}
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

// diskVolume is a volume of a pod that is to be a disk.
type diskVolume struct {
	dir, name string // the pod's directory, and what the pod calls it
	source    *corev1.ISCSIPersistentVolumeSource
	disk      diskRecord
	block     bool              // the disk itself is the volume, without a file system
	secret    map[string][]byte // for CHAP
}

// sourceOf is a volume as a PersistentVolume has it; nil for one of another kind.
func sourceOf(s kind.Source) *corev1.ISCSIPersistentVolumeSource {
	if s.Bound != nil {
		return s.Bound.Spec.ISCSI
	}
	i := s.Pod.ISCSI
	if i == nil {
		return nil
	}
	out := &corev1.ISCSIPersistentVolumeSource{
		TargetPortal: i.TargetPortal, IQN: i.IQN, Lun: i.Lun, ISCSIInterface: i.ISCSIInterface, FSType: i.FSType, ReadOnly: i.ReadOnly,
		Portals: i.Portals, DiscoveryCHAPAuth: i.DiscoveryCHAPAuth, SessionCHAPAuth: i.SessionCHAPAuth, InitiatorName: i.InitiatorName,
	}
	if i.SecretRef != nil {
		out.SecretRef = &corev1.SecretReference{Name: i.SecretRef.Name}
	}
	return out
}

// Traits says that a disk is mounted in the pod's directory, or is a volume as it is.
func (*Kind) Traits() kind.Traits { return kind.Traits{Plugin: plugin, Block: true, Elsewhere: true} }

// Makes says whether the source is a disk of an iSCSI target.
func (*Kind) Makes(s kind.Source) bool { return sourceOf(s) != nil }

// ReadOnly says whether the disk is for reading only.
func (*Kind) ReadOnly(s kind.Source) bool { return sourceOf(s).ReadOnly }

// chap is what the Secret of a volume is for: the target is shown with it who asks.
const chap = "chap"

// Secrets names the Secret for CHAP.
func (*Kind) Secrets(s kind.Source) []kind.SecretRef {
	if ref := sourceOf(s).SecretRef; ref != nil {
		return []kind.SecretRef{{Use: chap, Namespace: ref.Namespace, Name: ref.Name}}
	}
	return nil
}

// Setup logs in to the target where nobody has yet, and mounts the file system of the disk, which is made when there is
// nothing on it. In block mode the disk itself is the volume.
func (k *Kind) Setup(ctx context.Context, v *kind.Volume) (kind.Made, error) {
	s, at := sourceOf(v.Source), v.Path(plugin)
	made := kind.Made{Path: at, Group: !s.ReadOnly}
	if mounted, err := mount.Is(at); err != nil || mounted {
		return made, err
	}
	if err := checkNames(s); err != nil {
		return made, err
	}
	portals, err := portalsOf(s)
	if err != nil {
		return made, err
	}
	adm, err := findAdm()
	if err != nil {
		return made, err
	}
	disk := diskRecord{IQN: s.IQN, LUN: s.Lun, Iface: k.ifaceName(s), Portals: portals}
	device, err := k.attach(ctx, adm, diskVolume{v.Dir, v.Name, s, disk, v.Block(), v.Secrets[chap]})
	if err != nil {
		return made, fmt.Errorf("iSCSI target %s: %w", s.IQN, err)
	}
	if v.Block() {
		return kind.Made{Path: device}, nil
	}
	what := mount.FileSystem{Device: device, Type: s.FSType, Options: v.MountOptions(), ReadOnly: s.ReadOnly}
	if err := k.devices.Mount(ctx, at, what); err != nil {
		return made, fmt.Errorf("LUN %d of iSCSI target %s (%s): %w", s.Lun, s.IQN, device, err)
	}
	return made, nil
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

// defaultPort is the port of iSCSI targets (RFC 7143).
const defaultPort = 3260

func parsePortal(text string) (string, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.AddrPortFrom(addr, defaultPort).String(), nil
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
