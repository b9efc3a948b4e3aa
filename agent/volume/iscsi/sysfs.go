package iscsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/mount"
)

// kernel is what the kernel has of sessions and their disks.
type kernel struct{ sys, dev string } // where it shows its devices

// session is a session of the initiator, as the kernel has it.
type session struct {
	id    int
	iface string
	state string
}

const loggedIn = "LOGGED_IN"

// sessions lists the sessions with a target, whoever made them.
func (n kernel) sessions(iqn string) ([]session, error) {
	dirs, err := filepath.Glob(filepath.Join(n.sys, "class/iscsi_session/session*"))
	if err != nil {
		return nil, err
	}
	var out []session
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "session"))
		if err != nil {
			continue
		}
		var values [3]string
		for i, name := range []string{"targetname", "ifacename", "state"} {
			var data []byte
			if data, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				break
			}
			values[i] = strings.TrimSpace(string(data))
		}
		// It goes while it is looked at, or comes and has no name yet.
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list iSCSI sessions: %w", err)
		}
		if values[0] == iqn {
			out = append(out, session{id, values[1], values[2]})
		}
	}
	slices.SortFunc(out, func(a, b session) int { return cmp.Compare(a.id, b.id) })
	return out, nil
}

// ownSessions are the sessions with a disk's target that were made with its interface.
func (n kernel) ownSessions(disk diskRecord) ([]session, error) {
	all, err := n.sessions(disk.IQN)
	return slices.DeleteFunc(all, func(s session) bool { return s.iface != disk.Iface }), err
}

// diskDirs are the directories of a session's SCSI devices in sysfs; lun -1 = all.
func (n kernel) diskDirs(id int, lun int32) ([]string, error) {
	last := "*"
	if lun >= 0 {
		last = strconv.Itoa(int(lun))
	}
	return filepath.Glob(filepath.Join(n.sys, "class/iscsi_session", fmt.Sprintf("session%d", id), "device/target*/*:*:*:"+last))
}

// deviceOf is the block device of a LUN in a session; "" when the kernel has none.
func (n kernel) deviceOf(id int, lun int32) (string, error) {
	found, err := n.diskDirs(id, lun)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return n.blockOf(found[0])
}

func (n kernel) blockOf(disk string) (string, error) {
	found, err := filepath.Glob(filepath.Join(disk, "block/*"))
	if err != nil || len(found) == 0 {
		return "", err
	}
	return filepath.Join(n.dev, filepath.Base(found[0])), nil
}

// diskTimeout is how long the kernel may take with a disk that it has found.
const diskTimeout = 30 * time.Second

// disk has the kernel look for a LUN in a session and returns its block device.
func (n kernel) disk(ctx context.Context, id int, lun int32) (string, error) {
	// From before the search, so that nothing is missed.
	events, err := listenUevents()
	if err != nil {
		return "", err
	}
	defer events.Close()
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	at, err := filepath.EvalSymlinks(filepath.Join(n.sys, "class/iscsi_session", fmt.Sprintf("session%d", id), "device"))
	if err != nil {
		return "", fmt.Errorf("find session %d: %w", id, err)
	}
	// The session's device is in its host's. The search is over when the write returns.
	scan := filepath.Join(n.sys, "class/scsi_host", filepath.Base(filepath.Dir(at)), "scan")
	if err := os.WriteFile(scan, []byte("- - "+strconv.Itoa(int(lun))), 0); err != nil {
		return "", fmt.Errorf("look for LUN %d: %w", lun, err)
	}
	found, err := n.diskDirs(id, lun)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", fmt.Errorf("the target has no LUN %d", lun)
	}
	buf := make([]byte, 1<<16)
	for {
		// That it is a disk the kernel finds out later, beside everything else.
		device, err := n.blockOf(found[0])
		if err != nil {
			return "", err
		}
		if info, err := os.Stat(device); device != "" && err == nil && mount.IsBlock(info.Mode()) {
			return device, nil
		}
		// What was lost because there was too much of it may have been the one.
		if _, err := events.Read(buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return "", fmt.Errorf("wait for the device of LUN %d: %w", lun, err)
		}
	}
}

// listenUevents hears of the kernel's devices, as they come.
func listenUevents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("listen for devices: %w", err)
	}
	const kernel = 1 // the group in which the kernel itself speaks
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen for devices: %w", err)
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

// notInUse says which disk of a session has a file system that is mounted, or is held by somebody else; lun -1 = any.
func (n kernel) notInUse(id int, lun int32) error {
	disks, err := n.diskDirs(id, lun)
	if err != nil {
		return err
	}
	for _, d := range disks {
		device, err := n.blockOf(d)
		if err != nil {
			return err
		}
		if device == "" {
			continue
		}
		// Who opens it like that has it for himself, as a file system has.
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%s is still in use", device)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	return nil
}

// detach takes the device of a disk away, while its session stays for others.
func (n kernel) detach(disk diskRecord) error {
	sessions, err := n.ownSessions(disk)
	if err != nil {
		return err
	}
	for _, s := range sessions {
		if err := n.notInUse(s.id, disk.LUN); err != nil {
			return err
		}
		found, err := n.diskDirs(s.id, disk.LUN)
		if err != nil {
			return err
		}
		for _, d := range found {
			if err := os.WriteFile(filepath.Join(d, "delete"), []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove disk: %w", err)
			}
		}
	}
	return nil
}
