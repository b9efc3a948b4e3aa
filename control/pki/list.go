package pki

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// Entry is one certificate as a list has it.
type Entry struct {
	Name, File, Subject, Authority string
	NotAfter                       time.Time
	Err                            error // why it cannot be read
}

// List reads the certificates of a directory and changes nothing.
func List(dir string) []Entry {
	s := &Store{dir: dir}
	var all []Entry
	for _, name := range authorities() {
		all = append(all, Entry{Name: name})
		for _, other := range []string{name + nextSuffix, name + oldSuffix} {
			if _, err := os.Lstat(s.Path(other)); err == nil {
				all = append(all, Entry{Name: other})
			}
		}
	}
	for _, l := range leaves() {
		all = append(all, Entry{Name: l.name, Authority: l.authority})
	}
	for i := range all {
		e := &all[i]
		e.File = s.Path(e.Name)
		p, err := readPair(e.File)
		if e.Err = err; err == nil {
			e.Subject, e.NotAfter = p.cert.Subject.String(), p.cert.NotAfter
		}
	}
	return all
}

// Hosts are the names and addresses that the serving certificate in a directory is for.
func Hosts(dir string) ([]string, error) {
	p, err := readPair((&Store{dir: dir}).Path(Serving))
	if err != nil {
		return nil, fmt.Errorf("read serving certificate: %w", err)
	}
	all := slices.Clone(p.cert.DNSNames)
	for _, ip := range p.cert.IPAddresses {
		all = append(all, ip.String())
	}
	return all, nil
}
