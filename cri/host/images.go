package host

import (
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/image"
)

// ImageFor is the image that a name stands for where a handler is to run it.
func ImageFor(s Images, ref string, h handler.Handler) (image.Image, error) {
	if h.Kind == handler.Wasm {
		return s.GetModule(ref)
	}
	return s.Get(ref)
}
