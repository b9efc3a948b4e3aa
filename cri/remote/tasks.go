package remote

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// tasks are what containerd has of containers, which it serves on the socket of its CRI. The CRI in it loses sight of
// one when a start is cut off at the wrong moment: it says that the container has exited and does not stop it, but
// refuses to remove it for as long as there is a task ("cannot delete running task"), dead or not. Without this only a
// restart of containerd would help.
type tasks struct {
	conn grpc.ClientConnInterface
	log  *slog.Logger
}

const (
	deleteTask    = "/containerd.services.tasks.v1.Tasks/Delete"
	namespaceKey  = "containerd-namespace"
	namespaceName = "k8s.io" // that of all which containerd's CRI makes
	// taskTimeout is how long containerd may take for one.
	taskTimeout = 30 * time.Second
)

// forget deletes the tasks of containers. It says whether one went. containerd refuses those that run; other runtimes
// know no such call.
func (t tasks) forget(ctx context.Context, ids []string) (gone bool) {
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, namespaceKey, namespaceName), taskTimeout)
		// The first field of the request and that of the answer are the ID, as the only one of a StringValue is its
		// string.
		err := t.conn.Invoke(ctx, deleteTask, wrapperspb.String(id), new(wrapperspb.StringValue))
		cancel()
		switch status.Code(err) {
		case codes.OK:
			gone = true
			t.log.Info("deleted a task that the runtime had lost sight of", "id", id)
		case codes.NotFound, codes.Unimplemented:
		default:
			t.log.Warn("runtime keeps a task that it has lost sight of", "id", id, "error", err)
		}
	}
	return gone
}

// removal makes a call that removes something, and makes it again when the runtime had refused it for the sake of tasks
// of those containers.
func removal[Req, Resp any](
	ctx context.Context, changed chan<- struct{}, t tasks, do call[Req, Resp], req *Req, whose func() []string,
) (*Resp, error) {
	resp, err := change(ctx, changed, do, req)
	if status.Code(err) != codes.FailedPrecondition || !t.forget(ctx, whose()) {
		return resp, err
	}
	return change(ctx, changed, do, req)
}
