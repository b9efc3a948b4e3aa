// Rotation of an authority, or of the key of tokens: another takes its place, and both are trusted for a while.
//
//	          Stage               Switch                       Retire
//	NAME.pem ───────▶ NAME.next.pem ───────▶ NAME.pem, NAME.old.pem ───────▶ NAME.pem
//
// The next one is trusted first, so that nobody meets what it has signed before. When it signs, what it has signed goes
// with a certificate by which the authority before vouches for it: who trusts one of the two only trusts that as well.
// Each step is one file that is replaced or removed as a whole, and what follows from the files is made again after a
// crash.

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-node/berth/internal/atomicfile"
)

const (
	nextSuffix = ".next"
	oldSuffix  = ".old"
)

// Rotated are the names of what can be rotated: the authorities, and the key of tokens.
func Rotated() []string { return append(authorities(), TokenKey) }

// Passing are the files that are there in a rotation, and after one, of which members share the content, too.
func Passing() []string {
	var all []string
	for _, name := range Rotated() {
		all = append(all, name+nextSuffix+".pem", name+oldSuffix+".pem")
	}
	for _, name := range authorities() {
		all = append(all, retiredName(name))
	}
	return all
}

// State is how far the rotation of an authority is in a directory: the IDs of the one that signs, of the one that is to
// follow it, and of the one before that is trusted still. An ID is the SHA-256 of the public key, in hex.
type State struct{ Active, Next, Old string }

// At is the certificates of a directory as they are, for who reads them. Nothing is made.
func At(dir string, opts Options) *Store { return &Store{dir: dir, opts: opts} }

// files are those of a directory. Who changes them has the lock of the [Store].
type files struct{ dir string }

func (s *Store) files() files { return files{s.dir} }

func (s files) path(name string) string { return filepath.Join(s.dir, name+".pem") }

func (s files) trustPath(authority string) string { return filepath.Join(s.dir, authority+".crt") }

// State reads how far a rotation is.
func (s *Store) State(name string) (State, error) {
	s.turn.mu.Lock()
	defer s.turn.mu.Unlock()
	return s.files().state(name)
}

func (s files) state(name string) (State, error) {
	var out State
	var err error
	if out.Active, err = s.id(name); err != nil {
		return out, unreadable(s.path(name), err)
	}
	for suffix, id := range map[string]*string{nextSuffix: &out.Next, oldSuffix: &out.Old} {
		if *id, err = s.id(name + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, fmt.Errorf("read %s: %w; put back a copy of it", s.path(name+suffix), err)
		}
		// Between the two writes of a switch, and after them.
		if *id == out.Active {
			*id = ""
		}
	}
	return out, nil
}

// id is the ID of what is in a file.
func (s files) id(name string) (string, error) {
	key, err := s.key(name)
	if err != nil {
		return "", err
	}
	return keyID(key.Public())
}

func (s files) key(name string) (*ecdsa.PrivateKey, error) {
	if base(name) == TokenKey {
		return readSigner(s.path(name))
	}
	p, err := readPair(s.path(name))
	return p.key, err
}

// base is what a file's name is without its place in a rotation.
func base(name string) string { return name[:len(name)-len(filepath.Ext(name))] }

func keyID(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// SealKey is a key that only who has the authority of an ID has: members by it read what follows it.
func (s *Store) SealKey(name, id string) ([]byte, error) {
	for _, suffix := range []string{"", oldSuffix} {
		key, err := s.files().key(name + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if has, err := keyID(key.Public()); err != nil || has != id {
			continue
		}
		secret, err := key.Bytes()
		if err != nil {
			return nil, err
		}
		return hkdf.Key(sha256.New, secret, nil, "berth rotation of "+name, sha256.Size)
	}
	return nil, fmt.Errorf("read %s: it is not the one that is rotated, which is %.12s", s.Path(name), id)
}

// MakeNext makes what is to take the place of an authority, which vouches for it, and returns its ID and its file.
// Nothing is written.
func (s *Store) MakeNext(name string) (id string, file []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, fmt.Errorf("make key of %s: %w", name, err)
	}
	if id, err = keyID(key.Public()); err != nil {
		return "", nil, err
	}
	if name == TokenKey {
		file, err = encodeSigner(key)
		return id, file, err
	}
	now, err := readPair(s.Path(name))
	if err != nil {
		return "", nil, unreadable(s.Path(name), err)
	}
	// Two authorities of one name confuse those who look for an issuer by its name alone.
	common := commonName(name) + "-" + id[:8]
	self, err := sign(s.authority(common), nil, key.Public(), key)
	if err != nil {
		return "", nil, fmt.Errorf("make certificate authority %s: %w", name, err)
	}
	template := s.authority(common)
	template.NotAfter = now.cert.NotAfter
	voucher, err := sign(template, now.cert, key.Public(), now.key)
	if err != nil {
		return "", nil, fmt.Errorf("vouch for certificate authority %s: %w", name, err)
	}
	private, err := encodeKey(key)
	return id, slices.Concat(encodeCert(self), encodeCert(voucher), private), err
}

// Stage has what follows an authority trusted. It signs nothing yet.
func (s *Store) Stage(name string, file []byte) error {
	unlock, err := s.turn.take(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.files().checkNext(name, file); err != nil {
		return fmt.Errorf("take the next %s: %w", name, err)
	}
	if err := atomicfile.WriteSynced(s.Path(name+nextSuffix), file, 0o600); err != nil {
		return fmt.Errorf("write the next %s: %w", name, err)
	}
	return s.follow(name)
}

// checkNext refuses what the authority that is there does not vouch for.
func (s files) checkNext(name string, file []byte) error {
	if name == TokenKey {
		_, err := parseSigner(file)
		return err
	}
	p, err := parsePair(file)
	if err != nil {
		return err
	}
	now, err := readPair(s.path(name))
	if err != nil {
		return unreadable(s.path(name), err)
	}
	if !p.cert.IsCA || len(p.chain) != 1 || p.chain[0].CheckSignatureFrom(now.cert) != nil ||
		!bytes.Equal(p.chain[0].RawSubjectPublicKeyInfo, p.cert.RawSubjectPublicKeyInfo) {
		return errors.New("the one that is there does not vouch for it")
	}
	return nil
}

// Switch has what follows an authority sign from now on, and makes again what the one before has signed.
func (s *Store) Switch(name string) error {
	unlock, err := s.turn.take(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := s.files().state(name)
	if err != nil {
		return err
	}
	if state.Next != "" {
		if err := s.files().change(name); err != nil {
			return fmt.Errorf("have the next %s sign: %w", name, err)
		}
	}
	return s.follow(name)
}

// change puts the next one in the place of the one that signs: first that one is put beside it, with what vouches for
// its successor.
func (s files) change(name string) error {
	now, err := readFile(s.path(name))
	if err != nil {
		return err
	}
	next, err := readFile(s.path(name + nextSuffix))
	if err != nil {
		return err
	}
	if name != TokenKey {
		p, err := parsePair(next)
		if err != nil {
			return err
		}
		private, err := encodeKey(p.key)
		if err != nil {
			return err
		}
		// Those who sign with it as well, as a controller manager does, take a file of one certificate only.
		now, next = append(now, encodeCerts(p.chain)...), append(encodeCert(p.cert), private...)
	}
	if err := atomicfile.WriteSynced(s.path(name+oldSuffix), now, 0o600); err != nil {
		return err
	}
	return atomicfile.WriteSynced(s.path(name), next, 0o600)
}

// Retire has the authority before trusted no more, and forgets its key.
func (s *Store) Retire(name string) error {
	unlock, err := s.turn.take(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := s.files().state(name)
	if err != nil {
		return err
	}
	if state.Next != "" {
		return fmt.Errorf("retire %s: the next one does not sign yet", name)
	}
	if state.Old != "" {
		if err := s.files().remember(name); err != nil {
			return fmt.Errorf("retire %s: %w", name, err)
		}
		if err := remove(s.Path(name + oldSuffix)); err != nil {
			return fmt.Errorf("retire %s: %w", name, err)
		}
	}
	return s.follow(name)
}

// settle makes what follows from the files of a rotation, as a crash may have left them.
func (s files) settle(name string) error {
	state, err := s.state(name)
	if err != nil {
		return err
	}
	if state.Next == "" {
		if err := remove(s.path(name + nextSuffix)); err != nil {
			return err
		}
	}
	if name == TokenKey {
		return nil
	}
	p, err := readPair(s.path(name))
	if err != nil {
		return unreadable(s.path(name), err)
	}
	return s.trust(name, p.cert)
}

// follow settles, and makes certificates again that are not those of the authority any more.
func (s *Store) follow(name string) error {
	if err := s.files().settle(name); err != nil {
		return err
	}
	_, err := s.renew(false)
	return err
}

// TokenKeys are the key that signs tokens, and those that verify them beside it.
func (s *Store) TokenKeys() (*ecdsa.PrivateKey, []any, error) {
	s.turn.mu.Lock()
	defer s.turn.mu.Unlock()
	active, err := s.ServiceAccountKey()
	if err != nil {
		return nil, nil, err
	}
	var others []any
	for _, suffix := range []string{nextSuffix, oldSuffix} {
		key, err := readSigner(s.Path(TokenKey + suffix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", s.Path(TokenKey+suffix), err)
		}
		others = append(others, key.Public())
	}
	return active, others, nil
}

// remove removes a file for good, if it is there.
func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}
