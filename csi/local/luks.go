package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/command"
)

// passphraseKey is the key of the Secret of a class that has the passphrase of its volumes.
const passphraseKey = "passphrase"

// maxPassphrase is the longest that cryptsetup takes, in bytes.
const maxPassphrase = 512

// cryptTime bounds a call of cryptsetup: the derivation of a key takes seconds, by intent.
const cryptTime = 2 * time.Minute

func lockedName(id string) string { return "berth-" + id }
func lockedPath(id string) string { return filepath.Join("/dev/mapper", lockedName(id)) }

// cryptsetup gets secrets by a pipe, and by nothing that others can read.
func cryptsetup(ctx context.Context, passphrase string, args ...string) error {
	c := command.Call{Name: "cryptsetup", Args: append([]string{"--batch-mode"}, args...), Deadline: cryptTime}
	if passphrase != "" {
		c.Stdin = []byte(passphrase)
		c.Args = append(c.Args, "--key-file=-")
	}
	_, err := c.Run(ctx)
	return err
}

func passphraseOf(secrets map[string]string) (string, error) {
	p := secrets[passphraseKey]
	switch {
	case p == "":
		return "", invalid("secrets", "the volume is encrypted: %q must be given, by csi.storage.k8s.io/node-stage-secret-name of the class", passphraseKey)
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
	if _, err := os.Stat(lockedPath(v.ID)); err == nil {
		return lockedPath(v.ID), nil
	}
	st.records.step.at("open encrypted device")
	if !v.Locked {
		if err := cryptsetup(ctx, passphrase, "luksFormat", "--type=luks2", "--offset", fmt.Sprint(luksHeader/512), device); err != nil {
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
	args := []string{"open", "--type=luks", device, lockedName(v.ID)}
	if v.Trim != trimNever {
		args = append(args, "--allow-discards")
	}
	if err := cryptsetup(ctx, passphrase, args...); err != nil {
		return "", err
	}
	return lockedPath(v.ID), nil
}

// growLocked has the device within be as large as the one that it is on.
func growLocked(ctx context.Context, id string, secrets map[string]string) error {
	return cryptsetup(ctx, secrets[passphraseKey], "resize", lockedName(id))
}

// closeLocked closes the encrypted device of a volume; it is no error when it is not open.
func closeLocked(ctx context.Context, id string) error {
	if _, err := os.Lstat(lockedPath(id)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return cryptsetup(ctx, "", "close", lockedName(id))
}
