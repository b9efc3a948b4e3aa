package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/token"
	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/csi/node"
)

// Served is what an API server, and who works for it, does for the volumes of its pods. Both may be nil where there is
// none.
type Served struct {
	// Attachment says whether a volume is attached to this node; an error: nobody has said that it is to be.
	Attachment func(driver, handle string) (*storagev1.VolumeAttachment, error)
	// Token is a token of the pod's service account.
	Token func(context.Context, *corev1.Pod, token.Want) (token.Token, error)
	// Sizes are how many bytes a volume has by its claim, and how many it is to have on the node; 0: not known, none.
	Sizes func(v *corev1.PersistentVolume) (has, due int64)
	// Given is told that a volume is published to a pod.
	Given func()
}

// Waiting is the error of a volume that somebody else is still at.
type Waiting struct{ err error }

func (e *Waiting) Error() string { return e.err.Error() }

// Awaits marks the error for who tells of it: nothing has gone wrong yet.
func (*Waiting) Awaits() {}

// serve has a request of a pod of an API server be completed with what that does, once the driver is to be called. Such
// a pod's volume is never attached by its node.
func (k *Kind) serve(v *kind.Volume, r *node.Request, says *behaviour) {
	pod := v.Pod
	if !desired.OriginOf(pod).Cluster() {
		return
	}
	if k.cfg.Served.Sizes != nil && v.Bound != nil {
		r.Size, r.Expand = k.cfg.Served.Sizes(v.Bound)
		if r.ReadOnly {
			r.Expand = 0
		}
	}
	attach := says.attach && !r.Ephemeral
	r.Attached, r.AttachSecret = true, node.SecretRef{}
	r.Complete = func(ctx context.Context, r *node.Request) (err error) {
		if attach {
			if r.PublishContext, err = k.attached(r); err != nil {
				return err
			}
		}
		r.Tokens, err = k.tokens(ctx, pod, says.tokens)
		r.TokensInSecrets = says.tokensInSecrets
		return err
	}
}

// attached is what the controller has said of the attachment of a volume to this node.
func (k *Kind) attached(r *node.Request) (map[string]string, error) {
	if k.cfg.Served.Attachment == nil {
		return nil, errors.New("nobody here knows what is attached")
	}
	a, err := k.cfg.Served.Attachment(r.Driver, r.Handle)
	switch {
	case err != nil:
		return nil, &Waiting{fmt.Errorf("waiting for the volume to be attached: %w", err)}
	case a.Status.Attached && a.DeletionTimestamp == nil:
		return a.Status.AttachmentMetadata, nil
	case a.DeletionTimestamp != nil:
		return nil, &Waiting{errors.New("waiting for the volume to be attached again: it is being detached")}
	case a.Status.AttachError != nil:
		return nil, &attachError{fmt.Errorf("AttachVolume.Attach failed for volume %q : %s", r.Name, a.Status.AttachError.Message)}
	}
	return nil, &Waiting{errors.New("waiting for the volume to be attached")}
}

// defaultTokenSeconds is how long a token is good whose request does not say, as in the API.
const defaultTokenSeconds = 3600

// tokens are what a driver wants of the pod's service account, in the words that drivers know; "": nothing.
func (k *Kind) tokens(ctx context.Context, pod *corev1.Pod, wanted []storagev1.TokenRequest) (string, error) {
	if len(wanted) == 0 {
		return "", nil
	}
	if k.cfg.Served.Token == nil {
		return "", errors.New("the driver wants tokens of the pod's service account, and nobody here makes any")
	}
	type one struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expirationTimestamp"`
	}
	all := map[string]one{}
	for _, w := range wanted {
		want := token.Want{Audience: w.Audience, Seconds: defaultTokenSeconds, Once: true}
		if w.ExpirationSeconds != nil {
			want.Seconds = *w.ExpirationSeconds
		}
		made, err := k.cfg.Served.Token(ctx, pod, want)
		if err != nil {
			return "", err
		}
		all[w.Audience] = one{made.Text, made.Expires.UTC()}
	}
	text, err := json.Marshal(all)
	return string(text), err
}
