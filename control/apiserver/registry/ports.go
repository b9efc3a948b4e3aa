package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The ports of nodes that services may have.
const (
	firstPort, lastPort = 30000, 32767
	// portPrefix is where the store has who has a port: a key each, made by one of all that want it.
	portPrefix = "/registry/nodeports/"
)

var errPortTaken = errors.New("provided port is already allocated")

// ports gives services ports of the nodes.
type ports struct{ client *clientv3.Client }

func portKey(port int32) string { return path.Join(portPrefix, strconv.Itoa(int(port))) }

// take takes a port for an owner.
func (p *ports) take(ctx context.Context, owner string, port int32, dry bool) error {
	if port < firstPort || port > lastPort {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", firstPort, lastPort)
	}
	key := portKey(port)
	if dry {
		got, err := p.client.Get(ctx, key, clientv3.WithCountOnly())
		if err == nil && got.Count > 0 {
			err = errPortTaken
		}
		return err
	}
	answer, err := p.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, owner)).Commit()
	if err != nil {
		return fmt.Errorf("take port %d: %w", port, err)
	}
	if !answer.Succeeded {
		return errPortTaken
	}
	return nil
}

// next takes any free port.
func (p *ports) next(ctx context.Context, owner string, dry bool) (int32, error) {
	const count = lastPort - firstPort + 1
	try := func(n int32) (int32, error) { return firstPort + n, p.take(ctx, owner, firstPort+n, dry) }
	for range tries {
		if port, err := try(rand.Int32N(count)); !errors.Is(err, errPortTaken) {
			return port, err
		}
	}
	for n := range int32(count) {
		if port, err := try(n); !errors.Is(err, errPortTaken) {
			return port, err
		}
	}
	return 0, fmt.Errorf("node ports: %w", errFull)
}

func (p *ports) free(ctx context.Context, port int32) error {
	_, err := p.client.Delete(ctx, portKey(port))
	return err
}

// held has the owner of each port that is taken.
func (p *ports) held(ctx context.Context) (map[int32]string, error) {
	got, err := p.client.Get(ctx, portPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list node ports: %w", err)
	}
	all := map[int32]string{}
	for _, kv := range got.Kvs {
		if n, err := strconv.ParseInt(path.Base(string(kv.Key)), 10, 32); err == nil {
			all[int32(n)] = string(kv.Value)
		}
	}
	return all, nil
}
