package main

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/commandline"
)

// maxBundle bounds what a bundle may have in it, in bytes. It takes some 6 KiB.
const maxBundle = 256 << 10

// bundle is what each member of a control plane has, and what a new one is given: the authorities with their keys, the
// key of tokens and that of Secrets, and where etcd is.
type bundle struct {
	Files map[string][]byte `json:"files"` // by their names below pki
	Etcd  []string          `json:"etcd"`
}

// sharedFiles are the files that all members have alike.
func sharedFiles() []string { return append(pki.Shared(), optionalFiles()...) }

// optionalFiles are those of them that there need not be: a cluster may have been told to have no key of Secrets, and
// its authorities need not be in a rotation.
func optionalFiles() []string { return append(pki.Passing(), filepath.Base(data{}.encryption())) }

func (d data) bundle(etcd []string) (bundle, error) {
	b := bundle{Files: map[string][]byte{}, Etcd: etcd}
	for _, name := range sharedFiles() {
		text, err := atomicfile.Read(filepath.Join(d.pki(), name), maxFile)
		if errors.Is(err, fs.ErrNotExist) && slices.Contains(optionalFiles(), name) {
			continue
		}
		if err != nil {
			return b, fmt.Errorf("read what members share: %w", err)
		}
		b.Files[name] = text
	}
	return b, nil
}

// unpack writes the files of a bundle. It is for a directory that has none, or those of a try before.
func (b bundle) unpack(dir string) error {
	if err := atomicfile.MkdirSynced(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of certificates: %w", err)
	}
	for _, name := range sharedFiles() {
		text, ok := b.Files[name]
		if !ok {
			continue
		}
		if err := atomicfile.WriteSynced(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("write what members share: %w", err)
		}
	}
	return nil
}

// check says whether a bundle has what a member needs.
func (b bundle) check() error {
	for _, name := range pki.Shared() {
		if len(b.Files[name]) == 0 {
			return fmt.Errorf("read what members share: %s is missing", name)
		}
	}
	for name := range b.Files {
		if !slices.Contains(sharedFiles(), name) {
			return fmt.Errorf("read what members share: %q is none of it", name)
		}
	}
	if len(b.Etcd) == 0 {
		return errors.New("read what members share: no member takes others: start one with --peer-address")
	}
	return nil
}

// sealKey opens what is sealed. It is in the command that the administrator carries from one machine to the other, and
// in no object of the cluster.
type sealKey [32]byte

func newSealKey() sealKey {
	var k sealKey
	_, _ = rand.Read(k[:]) // it never fails
	return k
}

func (k sealKey) String() string { return hex.EncodeToString(k[:]) }

func parseSealKey(text string) (sealKey, error) {
	var k sealKey
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(k) {
		return k, commandline.Usagef("read --certificate-key: it has %d letters of 0-9 and a-f, as token create --member prints it", 2*len(k))
	}
	return sealKey(raw), nil
}

func (k sealKey) cipher() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// seal encrypts a bundle for the holder of the key, bound to the token that it is given with.
func (k sealKey) seal(b bundle, token string) ([]byte, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	c, err := k.cipher()
	if err != nil {
		return nil, err
	}
	return c.Seal(nil, nil, text, []byte(token)), nil
}

// open is the reverse of seal.
func (k sealKey) open(sealed []byte, token string) (bundle, error) {
	var b bundle
	if len(sealed) > maxBundle {
		return b, fmt.Errorf("read what members share: it has %d bytes and may have %d", len(sealed), maxBundle)
	}
	c, err := k.cipher()
	if err != nil {
		return b, err
	}
	text, err := c.Open(nil, nil, sealed, []byte(token))
	if err != nil {
		return b, errors.New("read what members share: --certificate-key is that of another token")
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("read what members share: %w", err)
	}
	return b, b.check()
}
