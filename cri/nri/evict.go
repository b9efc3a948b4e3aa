package nri

import (
	"context"
	"log/slog"
	"path"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// evicting reads the evictions out of the plugins' answers. The protocol has them beside adjustments and updates, but
// the library merges the answers of all plugins into one without them.
func evicting(rt Runtime, log *slog.Logger) ttrpc.ClientOpts {
	return ttrpc.WithUnaryClientInterceptor(func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, info *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
		if err := call(ctx, req, resp); err != nil {
			return err
		}
		var answer interface {
			proto.Message
			GetEvict() []*api.ContainerEviction
		}
		switch path.Base(info.FullMethod) {
		case "CreateContainer":
			answer = &api.CreateContainerResponse{}
		case "UpdateContainer":
			answer = &api.UpdateContainerResponse{}
		default: // no other can ask for it
			return nil
		}
		if err := proto.Unmarshal(resp.GetPayload(), answer); err != nil {
			log.Warn("evictions that an NRI plugin asks for cannot be read", "call", info.FullMethod, "error", err)
			return nil // the library reads it next, and says what to do about it
		}
		if evict := answer.GetEvict(); len(evict) > 0 {
			rt.PluginEvict(evict)
		}
		return nil
	})
}
