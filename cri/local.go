package cri

import (
	"context"
	"net/http"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image"
)

// Local is what the runtime offers the process that it runs in, beyond the CRI. It holds no state of its own.
type Local struct{ core *core }

// Local returns what the CRI has no calls for.
func (s *Server) Local() Local { return Local{s.core} }

// Images returns the image store.
func (l Local) Images() *image.Store { return l.core.images.store }

// ImageParts are the bytes of what each image is made of: see [image.Store.Parts].
func (l Local) ImageParts() map[string]map[string]int64 { return l.core.images.store.Parts() }

// ImagesCame says since when images are here, by ID.
func (l Local) ImagesCame() map[string]time.Time { return l.core.images.store.Came() }

// ImageHandler serves the images to the CLI: GET /images/ lists them, POST /images/pull?ref=NAME pulls one, POST
// /images/import imports the archive that is the body, DELETE /images/?ref=NAME removes one, with force=true one that
// is in use too. Pulls and imports answer in lines of JSON.
func (l Local) ImageHandler() http.Handler { return l.core.images.http(l.core.ctrs) }

// TellNamed has fn called, from now on, with the complete names that have an image, when they have it: pulled, imported
// or built by whomever. fn returns quickly.
func (l Local) TellNamed(fn func(names []string)) { l.core.images.named.Store(&fn) }

// AskForRoom, which is called once, has fn called from now on where an image has no room that nobody asks for by the
// CRI, whose client sees to that itself: one of the image directory, or of a command. fn says whether there may be more
// room now than at that moment.
func (l Local) AskForRoom(fn func(ctx context.Context, since time.Time) (bool, error)) {
	l.core.images.room.tell(fn)
}

// Layers is what the containers that run have written, by their ids: of ListContainerStats what nobody can read out of
// the kernel who knows their groups. The rest of that costs many times as much.
func (l Local) Layers(ctx context.Context) map[string]*runtimeapi.FilesystemUsage {
	return l.core.meters.layers(ctx)
}

// Shed removes what containers that have ended have written to their file systems, the oldest first, until so much is
// freed, and says how much that was. They stay, with their logs, until their client removes them.
func (l Local) Shed(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error) {
	return l.core.meters.shed(ctx, bytes, inodes)
}

// Purge removes every pod, and everything in the root and run directory and in the machine that was made for them.
func (l Local) Purge(ctx context.Context) error { return l.core.purge(ctx) }
