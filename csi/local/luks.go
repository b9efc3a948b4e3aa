package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/command"
)

// passphraseKey is the key of the Secret of a class that has the passphrase of its volumes.
const passphraseKey = "passphrase"

// maxPassphrase is the longest that cryptsetup takes, in bytes.
const maxPassphrase = 512

// cryptTime bounds a call of cryptsetup.
const cryptTime = 2 * time.Minute

// derivation is how keys are made of passphrases: at least the cost of RFC 9106's second recommended option. Left to
// itself cryptsetup measures the machine and takes up to a gigabyte of memory for two seconds: as much as a node has
// left, for each volume, and on one that is busy it takes minutes.
var derivation = []string{"--pbkdf=argon2id", "--pbkdf-memory=65536", "--pbkdf-parallel=4", "--pbkdf-force-iterations=4"}

// vault is the encrypted devices that are open. The kernel has one name for each on the whole machine: a driver on
// another data directory may have a volume of the same ID, which is not this one's.
type vault struct {
	prefix   string
	dir, sys string // where the kernel's devices have their names, and where it tells what they are on
	// turn is taken by who derives a key, which takes much memory by intent: of as many as there are volumes, one at a
	// time.
	turn chan struct{}
}

func newVault(dataDir string) vault {
	sum := sha256.Sum256([]byte(dataDir))
	return vault{
		prefix: "berth-" + hex.EncodeToString(sum[:4]) + "-", dir: "/dev/mapper", sys: "/sys", turn: make(chan struct{}, 1),
	}
}

func (l vault) name(id string) string { return l.prefix + id }

// path is the device of a volume while it is open.
func (l vault) path(id string) string { return filepath.Join(l.dir, l.name(id)) }

// earlier is what drivers called the device of a volume that had one name for all data directories.
func earlier(id string) string { return "berth-" + id }

// adopt gives the device of a volume that an earlier driver has opened the name by which it is looked for. below is the
// device that the volume is on: what is on another one is of the volume of another data directory.
func (l vault) adopt(ctx context.Context, id, below string) error {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(l.dir, earlier(id)), &st); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	numbers := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	_, err := os.Lstat(filepath.Join(l.sys, "dev/block", numbers, "slaves", filepath.Base(below)))
	if errors.Is(err, fs.ErrNotExist) || below == "" {
		return nil
	}
	if err != nil {
		return err
	}
	// Whoever has it open or mounted keeps it.
	_, err = command.Call{Name: "dmsetup", Args: []string{"rename", earlier(id), l.name(id)}, Deadline: cryptTime, Whole: true}.Run(ctx)
	return err
}

func (l vault) isOpen(id string) (bool, error) {
	_, err := os.Stat(l.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// noPermission is what cryptsetup exits with for a passphrase that is not the device's (cryptsetup(8)).
const noPermission = 2

// withKey calls cryptsetup, which gets secrets by a pipe, and by nothing that others can read.
func (l vault) withKey(ctx context.Context, passphrase string, c command.Call) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for other encrypted volumes: %w", ctx.Err())
	}
	c.Name, c.Args, c.Deadline = "cryptsetup", append([]string{"--batch-mode", "--key-file=-"}, c.Args...), cryptTime
	c.Stdin = []byte(passphrase)
	_, err := c.Run(ctx)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == noPermission {
		return invalid("secrets", "%s: it is not that of the volume: %v", passphraseKey, err)
	}
	return err
}

func passphraseOf(secrets map[string]string) (string, error) {
	p := secrets[passphraseKey]
	switch {
	case p == "":
		return "", invalid("secrets", "the volume is encrypted: %q must be given, by csi.storage.k8s.io/node-stage-secret-name and "+
			"node-expand-secret-name of the class", passphraseKey)
	case len(p) > maxPassphrase:
		return "", invalid("secrets", "%s: more than %d bytes", passphraseKey, maxPassphrase)
	}
	return p, nil
}

// openLocked opens the encrypted device of a volume, which gets a header where none was ever complete, and is the
// device within.
func (st *stager) openLocked(ctx context.Context, v *record.Volume, device string, secrets map[string]string) (string, error) {
	passphrase, err := passphraseOf(secrets)
	if err != nil {
		return "", err
	}
	vault := st.backends.vault
	open, err := vault.isOpen(v.ID)
	if err != nil {
		return "", fmt.Errorf("find out whether the encrypted device is open: %w", err)
	}
	if open { // of a try that was cut off, and so maybe smaller than what it is on
		return vault.path(v.ID), vault.grow(ctx, v.ID, secrets)
	}
	st.records.step.at("open encrypted device")
	if !v.Locked {
		args := slices.Concat([]string{"luksFormat", "--type=luks2", "--offset", fmt.Sprint(luksHeader / 512)}, derivation, []string{device})
		if err := vault.withKey(ctx, passphrase, command.Call{Args: args}); err != nil {
			return "", err
		}
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return "", fmt.Errorf("sync encrypted device: %w", err)
		}
		v.Locked = true
		if err := st.records.volumes.Put(*v); err != nil {
			return "", err
		}
	}
	// Discards tell the disk which blocks are in use, which is what trimming is for.
	args := []string{"open", "--type=luks", device, vault.name(v.ID)}
	if v.Trim != trimNever {
		args = append(args, "--allow-discards")
	}
	if err := vault.withKey(ctx, passphrase, command.Call{Args: args}); err != nil {
		return "", err
	}
	return vault.path(v.ID), nil
}

// grow has the device within be as large as the one that it is on, which takes the passphrase: the kernel hands out no
// key. The device is suspended meanwhile.
func (l vault) grow(ctx context.Context, id string, secrets map[string]string) error {
	passphrase, err := passphraseOf(secrets)
	if err != nil {
		return err
	}
	return l.withKey(ctx, passphrase, command.Call{Args: []string{"resize", l.name(id)}, Whole: true})
}

// close closes the encrypted device of a volume; it is no error when it is not open.
func (l vault) close(ctx context.Context, id string) error {
	if open, err := l.isOpen(id); err != nil || !open {
		return err
	}
	_, err := command.Call{Name: "cryptsetup", Args: []string{"--batch-mode", "close", l.name(id)}, Deadline: cryptTime}.Run(ctx)
	return err
}
