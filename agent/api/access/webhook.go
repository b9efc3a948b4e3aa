package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// cached is how many answers of each kind are remembered.
const cached = 4096

// reviewTimeout is how long an API server may take to answer.
const reviewTimeout = 10 * time.Second

// maxReview is how long an answer may be, in bytes: each is kept for a while.
const maxReview = 1 << 20

// Webhook asks an API server who has a token (TokenReview), and who may do what (SubjectAccessReview). It remembers the
// answers for a while.
type Webhook struct {
	cfg     WebhookConfig
	client  *rest.RESTClient
	tokens  *cache.LRUExpireCache
	reviews *cache.LRUExpireCache
}

// WebhookConfig says whom to ask, and for how long an answer is good.
type WebhookConfig struct {
	API      *rest.Config
	NodeName string

	TokenTTL                 time.Duration
	AllowedTTL, ForbiddenTTL time.Duration
	// Pause is what passes before an answer that was none is asked for again; it grows by half. 0: half a second.
	Pause time.Duration
}

func (c *WebhookConfig) backoff() wait.Backoff {
	b := wait.Backoff{Duration: c.Pause, Factor: 1.5, Jitter: 0.2, Steps: 5}
	if b.Duration == 0 {
		b.Duration = 500 * time.Millisecond
	}
	return b
}

// NewWebhook returns a Webhook. It asks nothing yet.
func NewWebhook(c WebhookConfig) (*Webhook, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(authenticationv1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("prepare reviews: %w", err)
	}
	cfg := rest.CopyConfig(c.API)
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.Timeout = reviewTimeout
	// Each answer lets a request go on; the limits of a client of its own would hold up others.
	cfg.QPS, cfg.Burst = -1, 0
	cfg.Wrap(func(t http.RoundTripper) http.RoundTripper { return boundedAnswers{t} })
	client, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare reviews: %w", err)
	}
	return &Webhook{
		cfg: c, client: client, tokens: cache.NewLRUExpireCache(cached),
		reviews: cache.NewLRUExpireCache(cached),
	}, nil
}

// boundedAnswers has the reading of an answer fail that is longer than maxReview: a client of the API reads all that
// there is.
type boundedAnswers struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxReview)
	}
	return resp, err
}

// TokenReviews authenticates by asking the API server.
type TokenReviews struct{ *Webhook }

// Authenticate implements [Authenticator].
func (t TokenReviews) Authenticate(r *http.Request) (*User, error) {
	return byToken(r, func(token string) (*User, error) {
		status, err := t.token(r.Context(), token)
		if err != nil {
			return nil, err
		}
		if !status.Authenticated {
			return nil, fmt.Errorf("the API server does not know the token: %s", status.Error)
		}
		u := &User{Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups, Extra: map[string][]string{}}
		for k, v := range status.User.Extra {
			u.Extra[k] = v
		}
		return u, nil
	})
}

func (w *Webhook) token(ctx context.Context, token string) (authenticationv1.TokenReviewStatus, error) {
	key := sha256.Sum256([]byte(token))
	if st, ok := w.tokens.Get(key); ok {
		return st.(authenticationv1.TokenReviewStatus), nil // nothing else is in there
	}
	// All attempts together have the time that one has: whoever asks is waiting.
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	var review *authenticationv1.TokenReview
	err := w.ask(ctx, func() error {
		var err error
		review, err = post(ctx, w, "/apis/authentication.k8s.io/v1/tokenreviews",
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}})
		return err
	})
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, fmt.Errorf("review token: %w", err)
	}
	// What the server could not find out now it may know a moment later.
	if review.Status.Authenticated || review.Status.Error == "" {
		w.tokens.Add(key, review.Status, w.cfg.TokenTTL)
	}
	return review.Status, nil
}

// post sends a review. What does not say that it is one is no answer: taken for one it would be a no, which is
// remembered.
func post[T runtime.Object](ctx context.Context, w *Webhook, path string, review T) (answer T, err error) {
	o, err := w.client.Post().AbsPath(path).Body(review).Do(ctx).Get()
	if runtime.IsMissingKind(err) { // the error has all of it
		err = errors.New("the answer is no object of the API")
	}
	if err != nil {
		return answer, err
	}
	answer, is := o.(T)
	if !is {
		return answer, fmt.Errorf("the answer is a %T", o)
	}
	return answer, nil
}

// ask asks again, a few times with growing pauses, while the API server's answer says that it may know better in a
// moment, or the connection was lost. A server that is not there is asked once: then everybody who comes would have to
// wait for nothing.
func (w *Webhook) ask(ctx context.Context, once func() error) error {
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, w.cfg.backoff(), func(context.Context) (bool, error) {
		last = once()
		_, delay := apierrors.SuggestsClientDelay(last)
		switch {
		case last == nil:
			return true, nil
		case delay, utilnet.IsConnectionReset(last), utilnet.IsHTTP2ConnectionLost(last),
			apierrors.IsInternalError(last), apierrors.IsTimeout(last), apierrors.IsTooManyRequests(last):
			return false, nil
		}
		return false, last
	})
	if last != nil {
		return last // why, rather than that it was asked often enough
	}
	return err
}

// Authorize implements [Authorizer]: one subresource after the other, until one is allowed.
func (w *Webhook) Authorize(ctx context.Context, u *User, want Attributes) (bool, string, error) {
	var why string
	for _, sub := range want.Subresources {
		spec := authorizationv1.SubjectAccessReviewSpec{
			User: u.Name, UID: u.UID, Groups: u.Groups, Extra: map[string]authorizationv1.ExtraValue{},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: want.Verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: w.cfg.NodeName,
			},
		}
		for k, v := range u.Extra {
			spec.Extra[k] = v
		}
		st, err := w.review(ctx, spec)
		if err != nil {
			return false, "", err
		}
		switch {
		case st.Allowed && st.Denied:
			return false, "", errors.New("review access: the API server allows and denies it")
		case st.Allowed:
			return true, "", nil
		}
		why = st.Reason
	}
	return false, why, nil
}

func (w *Webhook) review(ctx context.Context,
	spec authorizationv1.SubjectAccessReviewSpec,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	data, err := json.Marshal(spec) // maps are written in order
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("review access: %w", err)
	}
	key := sha256.Sum256(data)
	if st, ok := w.reviews.Get(key); ok {
		return st.(authorizationv1.SubjectAccessReviewStatus), nil // nothing else is in there
	}
	var review *authorizationv1.SubjectAccessReview
	err = w.ask(ctx, func() error {
		var err error
		review, err = post(ctx, w, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &authorizationv1.SubjectAccessReview{Spec: spec})
		return err
	})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("review access: %w", err)
	}
	ttl := w.cfg.ForbiddenTTL
	if review.Status.Allowed {
		ttl = w.cfg.AllowedTTL
	}
	w.reviews.Add(key, review.Status, ttl)
	return review.Status, nil
}
