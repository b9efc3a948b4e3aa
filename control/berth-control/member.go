package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/atomicfile"
)

// The ports of etcd as registered for it: for other members, and for clients.
const (
	defaultPeerPort = 2380
	defaultEtcdPort = 2379
)

// member is what a data directory keeps of the place of its etcd among others.
type member struct {
	Name     string `json:"name,omitempty"`
	Address  string `json:"address"` // by which the others reach it; empty: nobody does
	PeerPort int    `json:"peerPort,omitempty"`
	EtcdPort int    `json:"etcdPort,omitempty"`
	// Join are URLs of the members that were there when this one was to join them.
	Join []string `json:"join,omitempty"`
	// Joining is true until all that a member has of the others is in the directory.
	Joining bool `json:"joining,omitempty"`
}

// bind has flags say how others reach a member.
func (m *member) bind(p *pflag.FlagSet, about string) {
	p.StringVar(&m.Address, "peer-address", "", about)
	p.IntVar(&m.PeerPort, "peer-port", defaultPeerPort, "port of etcd for the other members, at --peer-address")
	p.IntVar(&m.EtcdPort, "etcd-port", defaultEtcdPort, "port of etcd for members that are to join, at --peer-address")
}

func (d data) readMember() (member, error) {
	var m member
	text, err := atomicfile.Read(d.member(), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, fmt.Errorf("read record of the member %s: %w; remove it: it is made again by what etcd has", d.member(), err)
	}
	return m, nil
}

func (d data) writeMember(m member) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = atomicfile.WriteSynced(d.member(), append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write record of the member: %w", err)
	}
	return nil
}

// place is the member of a directory, with what the flags of this start say of it. It is kept: without it the others
// would not reach the member at its next start.
func (d data) place(flags member, log *slog.Logger) (member, error) {
	m, err := d.recorded(log)
	if err != nil {
		return m, err
	}
	if m.Joining {
		return m, fmt.Errorf("start member: it has not all of the cluster that it is to join: run berth-control join again, or remove %s", d.dir)
	}
	if flags.Address == "" || flags.Address == m.Address && flags.PeerPort == m.PeerPort && flags.EtcdPort == m.EtcdPort {
		return m, nil
	}
	m.Address, m.PeerPort, m.EtcdPort = flags.Address, flags.PeerPort, flags.EtcdPort
	return m, d.writeMember(m)
}

// recorded is the record of the member. One that is gone, or is no record, is made again by what the store itself has:
// under another name the others would take it for another member, or for one of them.
func (d data) recorded(log *slog.Logger) (member, error) {
	m, err := d.readMember()
	if err == nil && m.Address+m.Name != "" || errors.Is(err, atomicfile.ErrNoFile) {
		return m, err
	}
	self, unknown := etcd.Identify(d.etcd())
	if unknown != nil {
		return m, err // what is wrong with a store it says itself, when it starts
	}
	if err == nil && self.Address == "" && self.Name == etcd.FirstName {
		return m, nil // a cluster of one member has no record
	}
	m = member{Name: self.Name, Address: self.Address, PeerPort: self.PeerPort, EtcdPort: self.ClientPort}
	log.Warn("record of the member is made again by what its store has", "file", d.member(), "name", m.Name, "address", m.Address, "error", err)
	return m, d.writeMember(m)
}

// known is [data.place] of a directory that has what its cluster is known by.
func (d data) known(flags member, log *slog.Logger) (member, error) {
	m, err := d.place(flags, log)
	if err == nil {
		err = d.keepsAuthorities()
	}
	return m, err
}

// peering is how others reach the member; nil: they do not.
func (m member) peering(store *pki.Store) *etcd.Peering {
	if m.Address == "" {
		return nil
	}
	return &etcd.Peering{
		Address: m.Address, PeerPort: m.PeerPort, ClientPort: m.EtcdPort,
		CertFile: store.Path(pki.EtcdMember), CAFile: store.TrustPath(pki.EtcdAuthority),
	}
}
