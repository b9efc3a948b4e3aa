package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/disk"
)

// What a file of trusted certificates has while an authority is rotated, and after.

// remember keeps the certificates of an authority that retires: whoever has published it is told to take it back.
func (s files) remember(name string) error {
	if name == TokenKey {
		return nil
	}
	old, err := readPair(s.path(name + oldSuffix))
	if err != nil {
		return err
	}
	all, err := s.retired(name)
	if err != nil {
		return err
	}
	for _, c := range append(old.chain, old.cert) {
		if !slices.ContainsFunc(all, c.Equal) {
			all = append(all, c)
		}
	}
	return atomicfile.WriteSynced(filepath.Join(s.dir, retiredName(name)), encodeCerts(all), 0o644)
}

func retiredName(authority string) string { return authority + ".retired.crt" }

// Retired are the certificates of an authority's predecessors that are trusted no more, and those by which they
// vouched.
func (s *Store) Retired(authority string) ([]*x509.Certificate, error) {
	return s.files().retired(authority)
}

func (s files) retired(authority string) ([]*x509.Certificate, error) {
	path := filepath.Join(s.dir, retiredName(authority))
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		var all []*x509.Certificate
		if all, err = parseCerts(data); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read %s: %w", path, err)
}

// quarantine puts aside what was kept of former authorities and cannot be read. Nothing that signs or is trusted now
// depends on it.
func (s *Store) quarantine() error {
	for _, name := range authorities() {
		path := filepath.Join(s.dir, retiredName(name))
		_, damage := s.files().retired(name)
		if damage == nil {
			continue
		}
		if disk.Scarce(damage) {
			return damage
		}
		aside, err := putAside(path, s.opts.Now())
		if err != nil {
			return fmt.Errorf("put certificates of former authorities aside: %w", err)
		}
		s.opts.Log.Warn("certificates of former authorities cannot be read: put back a copy of the file if members of etcd "+
			"that have run since before the last rotation are not reached", "file", path, "aside", aside, "error", damage)
	}
	return nil
}

// trust writes what is trusted: the authority, the one that follows it, the one before it.
func (s files) trust(name string, active *x509.Certificate) error {
	all := []*x509.Certificate{active}
	for _, suffix := range []string{nextSuffix, oldSuffix} {
		p, err := readPair(s.path(name + suffix))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return unreadable(s.path(name+suffix), err)
		case !slices.ContainsFunc(all, p.cert.Equal):
			all = append(all, p.cert)
		}
	}
	data := encodeCerts(all)
	if have, err := readFile(s.trustPath(name)); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return atomicfile.WriteSynced(s.trustPath(name), data, 0o644)
}

// vouchers are the certificates by which who trusts the authority before an active one trusts it, too, and that one
// itself. A member of etcd that runs goes on trusting what it has found at its start, however many rotations ago: to
// those the certificates of before are shown as well.
func (s files) vouchers(name string, active *x509.Certificate) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	old, err := readPair(s.path(name + oldSuffix))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, unreadable(s.path(name+oldSuffix), err)
	case !old.cert.Equal(active): // not between the two writes of a switch
		all = append(old.chain, old.cert)
	}
	if name != EtcdAuthority {
		return all, nil
	}
	before, err := s.retired(name)
	if err != nil {
		return nil, err
	}
	before = slices.DeleteFunc(before, func(c *x509.Certificate) bool { return bytes.Equal(c.RawIssuer, c.RawSubject) })
	slices.Reverse(before) // of more than a file may have the oldest go
	all = append(all, before...)
	return all[:min(len(all), maxChain)], nil
}
