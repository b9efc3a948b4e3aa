// Package rotation rotates a cluster's authorities, and the key that signs tokens of service accounts, on all members
// of the control plane: a record in etcd says how far a rotation is to be, each member follows it and says how far it
// is.
//
// A rotation has three phases. In the first what is to follow is trusted, in the second it signs and the one before is
// trusted still, in the third that one is not any more. Each begins when all members are in the one before it.
package rotation

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/pki"
)

// Phase is how far a rotation is.
type Phase string

// The phases of a rotation.
const (
	Trust Phase = "trust" // what is to follow is trusted, and signs nothing
	Sign  Phase = "sign"  // it signs, and the one before is trusted still
	Done  Phase = "done"  // the one before is not trusted any more
)

func (p Phase) rank() int { return slices.Index([]Phase{Trust, Sign, Done}, p) }

const (
	recordPrefix = "/berth/rotation/record/" // and the name of the authority
	memberPrefix = "/berth/rotation/member/" // and that of the authority, and of the member
	prefix       = "/berth/rotation/"
	// callTimeout bounds each call of etcd, which otherwise waits for a server for as long as there is none.
	callTimeout = 10 * time.Second
	// maxSealed bounds what is read of another member, in bytes. An authority has some 2 KiB.
	maxSealed = 64 << 10
)

// record is what all members are to follow.
type record struct {
	ID    string `json:"id"` // of what follows
	Of    string `json:"of"` // of what it follows
	Phase Phase  `json:"phase"`
	// Sealed is what follows, for who has what it follows. At the end it is gone: by then nobody may need it.
	Sealed []byte `json:"sealed,omitempty"`
}

// place is how far a member is.
type place struct {
	ID    string `json:"id"`
	Phase Phase  `json:"phase"`
	// Seen are those who have come with what the one before has signed, and when they did last.
	Seen map[string]time.Time `json:"seen,omitempty"`
	Err  string               `json:"error,omitempty"` // why it does not follow
}

// reached says whether a member is as far as a record.
func (p place) reached(r record) bool { return p.ID == r.ID && p.Phase.rank() >= r.Phase.rank() }

// seal encrypts what follows for those who have what it follows.
func seal(store *pki.Store, name, of string, file []byte) ([]byte, error) {
	c, err := sealer(store, name, of)
	if err != nil {
		return nil, err
	}
	return c.Seal(nil, nil, file, []byte(name)), nil
}

func unseal(store *pki.Store, name string, r record) ([]byte, error) {
	if len(r.Sealed) == 0 || len(r.Sealed) > maxSealed {
		return nil, fmt.Errorf("take the next %s: the record of the rotation has not what follows", name)
	}
	c, err := sealer(store, name, r.Of)
	if err != nil {
		return nil, err
	}
	file, err := c.Open(nil, nil, r.Sealed, []byte(name))
	if err != nil {
		return nil, fmt.Errorf("take the next %s: another one has sealed it", name)
	}
	return file, nil
}

func sealer(store *pki.Store, name, of string) (cipher.AEAD, error) {
	key, err := store.SealKey(name, of)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// board is all that etcd has of rotations.
type board struct {
	records  map[string]record
	versions map[string]int64            // of the records
	members  map[string]map[string]place // by authority, and by member
	revision int64
}

func read(ctx context.Context, client *clientv3.Client) (*board, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read rotations: %w", err)
	}
	b := &board{map[string]record{}, map[string]int64{}, map[string]map[string]place{}, got.Header.Revision}
	for _, kv := range got.Kvs {
		key := string(kv.Key)
		if name, ok := strings.CutPrefix(key, recordPrefix); ok {
			var r record
			if err := json.Unmarshal(kv.Value, &r); err != nil || r.Phase.rank() < 0 || !slices.Contains(pki.Rotated(), name) {
				return nil, fmt.Errorf("read rotation of %q: the record is none of this version's: %w", name, cmp.Or(err, errors.ErrUnsupported))
			}
			b.records[name], b.versions[name] = r, kv.ModRevision
			continue
		}
		name, who, ok := strings.Cut(strings.TrimPrefix(key, memberPrefix), "/")
		var p place
		// What a member cannot have written is nothing that it has reached.
		if !ok || json.Unmarshal(kv.Value, &p) != nil {
			continue
		}
		if b.members[name] == nil {
			b.members[name] = map[string]place{}
		}
		b.members[name][who] = p
	}
	return b, nil
}

var errWatch = errors.New("it has ended")

// changes are told of after a revision, until ctx ends or the watch does.
func changes(ctx context.Context, client *clientv3.Client, after int64) clientv3.WatchChan {
	return client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1))
}

// write writes a record, unless another one has come before it.
func write(ctx context.Context, client *clientv3.Client, name string, r record, version int64) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := recordPrefix + name
	done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", version)).Then(clientv3.OpPut(key, string(text))).Commit()
	if err != nil {
		return fmt.Errorf("write rotation of %s: %w", name, err)
	}
	if !done.Succeeded {
		return fmt.Errorf("write rotation of %s: somebody else is at it", name)
	}
	return nil
}
