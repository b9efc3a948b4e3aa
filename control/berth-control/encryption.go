package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/internal/atomicfile"
)

// noEncryption is the value of --encryption-provider-config that has objects stored as they are.
const noEncryption = "off"

// keepsAuthorities refuses a directory whose cluster has served and whose authorities are gone, with the certificates
// that say what they were. Others would be trusted by nobody, and the key of Secrets that goes with them reads none.
func (d data) keepsAuthorities() error {
	if _, err := os.Lstat(d.begun()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for the record of the store: %w", err)
	}
	for _, path := range []string{d.authority(), d.trust()} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil // what is there says what is wrong with it
		}
	}
	return fmt.Errorf("find certificates: there are none in %s, and a cluster was served from here, as %s tells: put the directory back from a copy; "+
		"others are made when %s is moved away, with which all certificates and tokens end, and no Secret can be read that was encrypted",
		d.pki(), d.begun(), d.begun())
}

// encryption is the file by which Secrets are encrypted: the user's, none, or the data directory's own.
//
// That of a new cluster is made here, with a key of its own, before anything else of the cluster. A cluster that is
// there and has none has lost it, and a new key would make its Secrets unreadable for ever.
func encryption(d data, file string) (string, error) {
	switch file {
	case noEncryption:
		return "", nil
	case "":
	default:
		return file, nil
	}
	own := d.encryption()
	has, err := atomicfile.Read(own, maxFile)
	if err == nil && len(has) == 0 {
		err = fmt.Errorf("%s is empty", own)
	}
	if err == nil {
		return own, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("find key of Secrets: %w: put a copy of the file back, Secrets can be read with it alone", err)
	}
	for _, path := range []string{d.authority(), d.trust()} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find key of Secrets: %s is not there, and Secrets can be read with it alone: put it back from a copy; "+
				"or --encryption-provider-config=%s, if none was ever encrypted", own, noEncryption)
		}
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return "", fmt.Errorf("make key of Secrets: %w", err)
	}
	// What was stored before there was a key is read as it is.
	text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: key-1, secret: %q}]}
  - identity: {}
`, base64.StdEncoding.EncodeToString(key))
	if err := atomicfile.MkdirSynced(filepath.Dir(own), 0o700); err != nil {
		return "", fmt.Errorf("make key of Secrets: %w", err)
	}
	if err := atomicfile.WriteSynced(own, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("make key of Secrets: %w", err)
	}
	return own, nil
}
