package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

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
		return m, fmt.Errorf("read record of the member %s: %w; remove it, and give --peer-address if there are other members", d.member(), err)
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
func (d data) place(flags member) (member, error) {
	m, err := d.readMember()
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

// known is [data.place] of a directory that has what its cluster is known by.
func (d data) known(flags member) (member, error) {
	m, err := d.place(flags)
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
