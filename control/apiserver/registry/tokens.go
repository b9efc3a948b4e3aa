package registry

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// How long a token is good, in seconds.
const (
	tokenDefault = 60 * 60
	tokenMin     = 10 * 60
	tokenMax     = 1 << 32
	// Clients that read a token once would be without one after this hour. Theirs is good for a year, and its use after
	// the hour is noted.
	projectedLife = 60*60 + 7
	extendedLife  = 365 * 24 * 60 * 60
)

// TokenRequest is what a token is wanted for.
type TokenRequest struct {
	Account   *corev1.ServiceAccount
	Pod       *corev1.Pod
	Secret    *corev1.Secret
	Node      *corev1.Node
	Audiences []string
	Seconds   int64
	WarnAfter int64 // seconds; 0: never
	Now       time.Time
}

// TokenIssuer signs tokens of service accounts.
type TokenIssuer interface {
	Issue(ctx context.Context, r TokenRequest) (string, error)
}

// tokenREST makes tokens of a service account.
type tokenREST struct {
	accounts, pods, secrets, nodes *REST
	issuer                         TokenIssuer
	audiences                      authenticator.Audiences
}

// New implements [rest.Storage].
func (*tokenREST) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy implements [rest.Storage].
func (*tokenREST) Destroy() {}

// GroupVersionKind implements [rest.GroupVersionKindProvider].
func (*tokenREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// Create implements [rest.NamedCreater].
func (t *tokenREST) Create(ctx context.Context, name string, o runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions,
) (runtime.Object, error) {
	in, ok := o.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", o))
	}
	in = in.DeepCopy()
	namespace := request.NamespaceValue(ctx)
	if in.Name == "" {
		in.Name = name
	}
	if in.Namespace == "" {
		in.Namespace = namespace
	}
	if in.Name != name || in.Namespace != namespace {
		return nil, apierrors.NewBadRequest("the name or namespace in the URL is not that of the TokenRequest")
	}
	in.Status = authenticationv1.TokenRequestStatus{}
	t.complete(in)
	if errs := checkTokenRequest(in); len(errs) > 0 {
		return nil, apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, in.DeepCopy()); err != nil {
			return nil, err
		}
	}
	return t.issue(ctx, name, in)
}

func (t *tokenREST) complete(in *authenticationv1.TokenRequest) {
	if len(in.Spec.Audiences) == 0 {
		in.Spec.Audiences = t.audiences
	}
	if in.Spec.ExpirationSeconds == nil {
		seconds := int64(tokenDefault)
		in.Spec.ExpirationSeconds = &seconds
	}
}

func checkTokenRequest(in *authenticationv1.TokenRequest) field.ErrorList {
	path, seconds := field.NewPath("spec", "expirationSeconds"), *in.Spec.ExpirationSeconds
	switch {
	case seconds < tokenMin:
		return field.ErrorList{field.Invalid(path, seconds, "may not specify a duration less than 10 minutes")}
	case seconds > tokenMax:
		return field.ErrorList{field.Invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

func (t *tokenREST) issue(ctx context.Context, name string, in *authenticationv1.TokenRequest) (runtime.Object, error) {
	o, err := t.accounts.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	r := TokenRequest{Account: o.(*corev1.ServiceAccount), Audiences: in.Spec.Audiences, Seconds: *in.Spec.ExpirationSeconds, Now: time.Now()}
	if err := t.bind(ctx, &r, in.Spec.BoundObjectRef); err != nil {
		return nil, err
	}
	ends := r.Now.Add(time.Duration(r.Seconds) * time.Second)
	if r.Pod != nil && r.Seconds == projectedLife && sameAudiences(r.Audiences, t.audiences) {
		r.WarnAfter, r.Seconds = r.Seconds, extendedLife
	}
	token, err := t.issuer.Issue(ctx, r)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	in.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.Time{Time: ends}}
	return in, nil
}

func sameAudiences(a, b []string) bool {
	return len(a) == len(b) && len(authenticator.Audiences(a).Intersect(b)) == len(a)
}

// bind reads the object that the token is good with.
func (t *tokenREST) bind(ctx context.Context, r *TokenRequest, ref *authenticationv1.BoundObjectReference) error {
	if ref == nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	from := map[string]*REST{"Pod": t.pods, "Secret": t.secrets, "Node": t.nodes}[gvk.Kind]
	if gvk.Group != "" || from == nil {
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	}
	scope := ctx
	if from == t.nodes {
		scope = cluster(ctx)
	}
	o, err := from.Get(scope, ref.Name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	if uid := metaOf(o).GetUID(); ref.UID != "" && ref.UID != uid {
		return uidConflict(from.DefaultQualifiedResource, ref.Name, ref.UID, uid)
	}
	switch o := o.(type) {
	case *corev1.Secret:
		r.Secret = o
	case *corev1.Node:
		r.Node = o
	case *corev1.Pod:
		if o.Spec.ServiceAccountName != r.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.",
				r.Account.Name))
		}
		r.Pod = o
		if o.Spec.NodeName != "" {
			// Without its node the token says its name alone.
			if n, err := t.nodes.Get(cluster(ctx), o.Spec.NodeName, &metav1.GetOptions{}); err == nil {
				r.Node = n.(*corev1.Node)
			}
		}
	}
	return nil
}

func uidConflict(r schema.GroupResource, name string, wanted, has types.UID) error {
	return apierrors.NewConflict(r, name, fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record (%s)."+
		" The object might have been deleted and then recreated", wanted, has))
}
