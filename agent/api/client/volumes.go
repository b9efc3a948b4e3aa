package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/berth-node/berth/agent/api"
)

// Volumes are the calls about volumes of CSI drivers.
type Volumes struct{ Client *Client }

// State returns all there is of CSI drivers.
func (v Volumes) State(ctx context.Context) (*api.VolumeState, error) {
	out := &api.VolumeState{}
	return out, v.ask(ctx, http.MethodGet, "/volumes", out)
}

// Check returns what is otherwise than the records say.
func (v Volumes) Check(ctx context.Context) ([]api.VolumeFinding, error) {
	var out []api.VolumeFinding
	return out, v.ask(ctx, http.MethodGet, "/volumes/check", &out)
}

// Undo has drivers take away the mounts that nobody knows of, and returns what has come of each.
func (v Volumes) Undo(ctx context.Context) ([]api.VolumeFinding, error) {
	var out []api.VolumeFinding
	return out, v.ask(ctx, http.MethodPost, "/volumes/undo", &out)
}

// Decide has what was made for a claim that is gone stay, or be deleted at once.
func (v Volumes) Decide(ctx context.Context, kind, namespace, claim string, keep bool) error {
	method := http.MethodDelete
	if keep {
		method = http.MethodPost
	}
	return v.ask(ctx, method, "/volumes/"+kind+"/"+url.PathEscape(namespace)+"/"+url.PathEscape(claim), &struct{}{})
}

// Abandon has pods that go be rid of a volume that its driver does not take away.
func (v Volumes) Abandon(ctx context.Context, driver, handle string) error {
	return v.ask(ctx, http.MethodPost, "/volumes/abandon", &struct{}{}, "driver", driver, "handle", handle)
}

func (v Volumes) ask(ctx context.Context, method, path string, out any, query ...string) error {
	resp, err := v.Client.Do(ctx, method, path, values(query...))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}
