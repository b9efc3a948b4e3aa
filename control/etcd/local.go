package etcd

import (
	"log/slog"
	"net"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/berth-node/berth/internal/socket"
)

const (
	// pingsApart is how often clients may ask whether the member is there; etcd's own default.
	pingsApart = 5 * time.Second
	// callsTimeout is how long the end of the member waits for calls of this machine.
	callsTimeout = 7 * time.Second
)

// local serves clients of this machine. The library would listen once: when somebody removes its socket no command
// reaches the member any more, and the API server does not when its connection breaks.
type local struct {
	listener  net.Listener
	server    *grpc.Server // nil: there is no member yet
	strangers strangers
}

// listenLocal listens at a path. Who connects waits until the member is ready.
func listenLocal(path string, log *slog.Logger) (*local, error) {
	l, err := socket.ListenPrivate(path, log)
	if err != nil {
		return nil, err
	}
	return &local{listener: l}, nil
}

// serve answers from when the member is ready.
func (l *local) serve(e *embed.Etcd) {
	l.server = v3rpc.Server(e.Server, nil, l.strangers.tell, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsApart}))
	go func() {
		select {
		case <-e.Server.ReadyNotify():
		case <-e.Server.StoppingNotify():
			return
		}
		_ = l.server.Serve(l.listener) // it is closed when the member stops
	}()
}

// stop lets calls end, for a while.
func (l *local) stop() {
	defer l.listener.Close()
	if l.server == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.server.GracefulStop()
	}()
	late := time.NewTimer(callsTimeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		l.server.Stop()
		<-done
	}
}
