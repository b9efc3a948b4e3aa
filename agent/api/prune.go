package api

import (
	"context"
	"net/http"
)

// Pruner removes what no pod needs; with dryRun it only says what that is.
type Pruner func(ctx context.Context, dryRun bool) (*Pruned, error)

// Pruned is what was removed, or would be.
type Pruned struct {
	DryRun bool     `json:"dryRun"`
	Items  []Freed  `json:"items"`
	Bytes  int64    `json:"bytes"`            // of all of them
	Errors []string `json:"errors,omitempty"` // of what should have been removed too
}

// Freed is one thing that was removed. Nothing is counted twice: a layer that images share is the last one's of them
// that goes.
type Freed struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	ID    string `json:"id,omitempty"`
	Pod   string `json:"pod,omitempty"` // namespace/name, or the UID of one that is not known
	Bytes int64  `json:"bytes"`
}

// The kinds of [Freed].
const (
	FreedImage     = "image"
	FreedContainer = "container"
	FreedLogs      = "logs"
	FreedPod       = "pod"
)

func (s *Server) prune(w http.ResponseWriter, r *http.Request) error {
	p, err := s.cfg.Prune(r.Context(), wants(r, "dryRun"))
	if err != nil {
		return err
	}
	return writeJSON(w, p)
}
