package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
)

const (
	// enlistTimeout bounds how long the other members may take to agree that there is one more.
	enlistTimeout = 60 * time.Second
	// promoteTimeout bounds how long a new member may take to get what the others have, and its vote.
	promoteTimeout = 30 * time.Minute
	// againAfter is how soon a member asks again for what the others have refused for now. They tell nobody when they
	// would not any more.
	againAfter = 250 * time.Millisecond
	// updateTimeout bounds how long the members may take to agree on an address.
	updateTimeout = 20 * time.Second
	// With other members an election waits for them to be heard of, and one that was away for a while is given the
	// entries that it has missed, not all objects.
	peerElection = 1000
	peerCatchUp  = 5000
)

// errRemoved is why a member stops by itself.
var errRemoved = errors.New("it was removed from the cluster, or has stopped: remove its directory to have it join again")

// Peering is how a member is reached by the others. All connections have certificates at both ends.
type Peering struct {
	Address              string // a name or an address
	PeerPort, ClientPort int
	// CertFile has its certificate and key, of the authority that CAFile has.
	CertFile, CAFile string
}

func (p *Peering) url(port int) url.URL {
	return url.URL{Scheme: "https", Host: net.JoinHostPort(p.Address, strconv.Itoa(port))}
}

func (p *Peering) configure(c *embed.Config) {
	peer := p.url(p.PeerPort)
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ListenClientUrls = append(c.ListenClientUrls, p.url(p.ClientPort))
	info := transport.TLSInfo{CertFile: p.CertFile, KeyFile: p.CertFile, TrustedCAFile: p.CAFile, ClientCertAuth: true}
	c.PeerTLSInfo, c.ClientTLSInfo = info, info
	c.ElectionMs, c.SnapshotCatchUpEntries = peerElection, peerCatchUp
}

// enlist has the members of a cluster know of a new one, which has no vote yet, and returns who they are, as etcd has
// it in its flags. It does so once, however often it is called before the member has data of its own.
func enlist(ctx context.Context, o Options) (string, error) {
	if o.Peering == nil {
		return "", errors.New("it was not told how the others reach it")
	}
	ctx, cancel := context.WithTimeout(ctx, enlistTimeout)
	defer cancel()
	client, err := Connect(Servers{Endpoints: o.Join, CAFile: o.Peering.CAFile, CertFile: o.Peering.CertFile, KeyFile: o.Peering.CertFile}, o.Log)
	if err != nil {
		return "", err
	}
	defer client.Close()
	var members []*etcdserverpb.Member
	err = patiently(ctx, func() error {
		members, err = add(ctx, client, o)
		return err
	})
	return initial(members, o), err
}

// Remove takes a member away. The others may refuse that for some seconds after one of them has come back.
func Remove(ctx context.Context, client *clientv3.Client, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, enlistTimeout)
	defer cancel()
	return patiently(ctx, func() error {
		if _, err := client.MemberRemove(ctx, id); err != nil {
			return fmt.Errorf("remove member %x: %w", id, err)
		}
		return nil
	})
}

// patiently does what the members may refuse for now, until they do not.
func patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !passing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", enlistTimeout, err)
		case <-time.After(againAfter):
		}
	}
}

// passing says whether others may take later what they have refused.
func passing(err error) bool {
	return errors.Is(err, rpctypes.ErrUnhealthy) || errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrLeaderChanged) ||
		errors.Is(err, rpctypes.ErrTooManyLearners)
}

// add adds the member, unless it has been added. One of its name that has had data is itself, before it has lost it: it
// may not go on under an identity that has promised what it does not know of any more.
func add(ctx context.Context, client *clientv3.Client, o Options) ([]*etcdserverpb.Member, error) {
	peer := o.Peering.url(o.Peering.PeerPort)
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	for _, m := range list.Members {
		switch {
		case !slices.Contains(m.PeerURLs, peer.String()) && m.Name != o.Name:
		case m.Name == "":
			return list.Members, nil
		case m.Name != o.Name:
			return nil, fmt.Errorf("add member: %s is where member %s is; berth-control etcd remove %x takes one away that is gone",
				peer.String(), m.Name, m.ID)
		default:
			if _, err := client.MemberRemove(ctx, m.ID); err != nil {
				return nil, fmt.Errorf("remove member that has lost its data: %w", err)
			}
		}
	}
	added, err := client.MemberAddAsLearner(ctx, []string{peer.String()})
	if errors.Is(err, rpctypes.ErrTooManyLearners) {
		return nil, fmt.Errorf("add member: %w: one that has been added has not begun yet; "+
			"berth-control etcd members tells which, and etcd remove takes it away", err)
	}
	if err != nil {
		return nil, fmt.Errorf("add member: %w", err)
	}
	return added.Members, nil
}

// initial are members as etcd's flag has them. The one that has no name yet is this one.
func initial(members []*etcdserverpb.Member, o Options) string {
	var all []string
	for _, m := range members {
		name := m.Name
		if name == "" {
			name = o.Name
		}
		for _, u := range m.PeerURLs {
			all = append(all, name+"="+u)
		}
	}
	return strings.Join(all, ",")
}

// promote waits until the member has a vote, for which it needs what the others have.
func (m *Member) promote(ctx context.Context, log *slog.Logger) error {
	server := m.etcd.Server
	if !server.IsLearner() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, promoteTimeout)
	defer cancel()
	log.Info("etcd gets what the other members have", "members", m.others())
	for server.IsLearner() {
		_, err := server.PromoteMember(ctx, uint64(server.MemberID()))
		if err != nil && !errors.Is(err, etcderrors.ErrLearnerNotReady) {
			log.Debug("member has no vote yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a vote: %w: %w", ctx.Err(), err)
		case <-server.StopNotify():
			return errRemoved
		case <-time.After(againAfter):
		}
	}
	return nil
}

// moved tells the others of an address that is not the one they have.
func (m *Member) moved(ctx context.Context, o Options) error {
	if o.Peering == nil {
		return nil
	}
	server := m.etcd.Server
	want := o.Peering.url(o.Peering.PeerPort)
	self := server.Cluster().Member(server.MemberID())
	if self == nil || slices.Equal(self.PeerURLs, []string{want.String()}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	_, err := server.UpdateMember(ctx, membership.Member{
		ID: server.MemberID(), RaftAttributes: membership.RaftAttributes{PeerURLs: []string{want.String()}},
	})
	if err != nil {
		return fmt.Errorf("tell other members of the address %s: %w", want.String(), err)
	}
	return nil
}

// others are the URLs of the other members.
func (m *Member) others() []string {
	var all []string
	for _, o := range m.etcd.Server.Cluster().Members() {
		if o.ID != m.etcd.Server.MemberID() {
			all = append(all, o.PeerURLs...)
		}
	}
	slices.Sort(all)
	return all
}

// ClientURLs are where the members of a cluster take requests from others.
func ClientURLs(ctx context.Context, client *clientv3.Client) ([]string, error) {
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	var all []string
	for _, m := range list.Members {
		for _, u := range m.ClientURLs {
			if strings.HasPrefix(u, "https://") {
				all = append(all, u)
			}
		}
	}
	return all, nil
}

// Hosts are the names and addresses by which the members of a cluster reach each other.
func Hosts(ctx context.Context, client *clientv3.Client) ([]string, error) {
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	var all []string
	for _, m := range list.Members {
		for _, text := range m.PeerURLs {
			if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
				all = append(all, u.Hostname())
			}
		}
	}
	return all, nil
}
