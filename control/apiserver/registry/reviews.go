package registry

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// review is a resource that is a question: what is created is answered and not stored.
type review struct {
	object     runtime.Object
	namespaced bool
	answer     func(ctx context.Context, o runtime.Object) error
}

// New implements [rest.Storage].
func (r review) New() runtime.Object { return fresh(r.object) }

// Destroy implements [rest.Storage].
func (review) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (r review) NamespaceScoped() bool { return r.namespaced }

// GetSingularName implements [rest.SingularNameProvider].
func (r review) GetSingularName() string { return (&resource{object: r.object}).singular() }

// Create implements [rest.Creater].
func (r review) Create(ctx context.Context, o runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, o.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return o, r.answer(ctx, o)
}

func asks[T any, P interface {
	*T
	runtime.Object
}](namespaced bool, answer func(ctx context.Context, o P) error) review {
	return review{P(new(T)), namespaced, func(ctx context.Context, o runtime.Object) error {
		q, ok := o.(P)
		if !ok {
			return apierrors.NewBadRequest(fmt.Sprintf("not a %T: %T", q, o))
		}
		return answer(ctx, q)
	}}
}

func reviews(o Options) map[schema.GroupVersion]map[string]rest.Storage {
	who := &identities{o.Authenticator, o.Audiences}
	may := &permissions{o.Authorizer, o.RuleResolver}
	return map[schema.GroupVersion]map[string]rest.Storage{
		authenticationv1.SchemeGroupVersion: {
			"tokenreviews": asks(false, who.token), "selfsubjectreviews": asks(false, who.self),
		},
		authorizationv1.SchemeGroupVersion: {
			"subjectaccessreviews": asks(false, may.subject), "selfsubjectaccessreviews": asks(false, may.self),
			"localsubjectaccessreviews": asks(true, may.local), "selfsubjectrulesreviews": asks(false, may.rules),
		},
	}
}

// identities answers who somebody is.
type identities struct {
	authenticator authenticator.Request
	audiences     authenticator.Audiences
}

func (i *identities) self(ctx context.Context, o *authenticationv1.SelfSubjectReview) error {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return apierrors.NewBadRequest("no user present on request")
	}
	o.Status = authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(u)}
	return nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}

func (i *identities) token(ctx context.Context, o *authenticationv1.TokenReview) error {
	o.Status = authenticationv1.TokenReviewStatus{}
	if o.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	audiences := authenticator.Audiences(o.Spec.Audiences)
	if len(audiences) == 0 {
		audiences = i.audiences
	}
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	r := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + o.Spec.Token}}}).WithContext(ctx)
	answer, ok, err := i.authenticator.AuthenticateRequest(r)
	if err != nil {
		o.Status.Error = err.Error()
		return nil // the answer is that there is none
	}
	if !ok || answer == nil || answer.User == nil || answer.User.GetName() == user.Anonymous {
		return nil
	}
	o.Status.Authenticated, o.Status.User = true, userInfo(answer.User)
	if len(answer.Audiences) > 0 {
		o.Status.Audiences = answer.Audiences
	}
	return nil
}

// permissions answers what somebody may.
type permissions struct {
	authorizer authorizer.Authorizer
	resolver   authorizer.RuleResolver
}

func (p *permissions) subject(ctx context.Context, o *authorizationv1.SubjectAccessReview) (err error) {
	if o.Spec.User == "" && len(o.Spec.Groups) == 0 {
		return apierrors.NewBadRequest("spec.user: at least one of user or group must be specified")
	}
	extra := map[string][]string{}
	for k, v := range o.Spec.Extra {
		extra[strings.ToLower(k)] = v
	}
	u := &user.DefaultInfo{Name: o.Spec.User, UID: o.Spec.UID, Groups: o.Spec.Groups, Extra: extra}
	o.Status, err = p.answer(ctx, u, o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes)
	return err
}

func (p *permissions) local(ctx context.Context, o *authorizationv1.LocalSubjectAccessReview) error {
	a := o.Spec.ResourceAttributes
	if a == nil || o.Spec.NonResourceAttributes != nil {
		return apierrors.NewBadRequest("spec.resourceAttributes: a local review is about a resource")
	}
	if namespace := request.NamespaceValue(ctx); a.Namespace != namespace {
		return apierrors.NewBadRequest("spec.resourceAttributes.namespace must be " + namespace + ", the namespace of the review")
	}
	global := authorizationv1.SubjectAccessReview{Spec: o.Spec}
	err := p.subject(ctx, &global)
	o.Status = global.Status
	return err
}

func (p *permissions) self(ctx context.Context, o *authorizationv1.SelfSubjectAccessReview) (err error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return apierrors.NewBadRequest("no user present on request")
	}
	o.Status, err = p.answer(ctx, u, o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes)
	return err
}

func (p *permissions) answer(ctx context.Context, u user.Info, r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	var status authorizationv1.SubjectAccessReviewStatus
	if (r == nil) == (n == nil) {
		return status, apierrors.NewBadRequest("spec: exactly one of nonResourceAttributes or resourceAttributes must be specified")
	}
	a := authorizer.AttributesRecord{User: u}
	if n != nil {
		a.Path, a.Verb = n.Path, n.Verb
	} else {
		a.ResourceRequest, a.Verb, a.Namespace, a.Name = true, r.Verb, r.Namespace, r.Name
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource = r.Group, r.Version, r.Resource, r.Subresource
		if a.APIVersion == "" {
			a.APIVersion = "*"
		}
		a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(r.FieldSelector)
		a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(r.LabelSelector)
	}
	decision, reason, err := p.authorizer.Authorize(ctx, a)
	status.Allowed, status.Denied, status.Reason = decision == authorizer.DecisionAllow, decision == authorizer.DecisionDeny, reason
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status, nil
}

func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if s == nil {
		return nil, nil
	}
	if s.RawSelector != "" {
		parsed, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return parsed.Requirements(), nil
	}
	var all fields.Requirements
	for _, r := range s.Requirements {
		if len(r.Values) != 1 {
			return all, fmt.Errorf("field %s: one value is wanted", r.Key)
		}
		op := selection.Equals
		if r.Operator == metav1.FieldSelectorOpNotIn {
			op = selection.NotEquals
		}
		all = append(all, fields.Requirement{Operator: op, Field: r.Key, Value: r.Values[0]})
	}
	return all, nil
}

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if s == nil {
		return nil, nil
	}
	if s.RawSelector != "" {
		parsed, err := labels.Parse(s.RawSelector)
		if err != nil {
			return nil, err
		}
		all, _ := parsed.Requirements()
		return all, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: s.Requirements})
	if err != nil {
		return nil, err
	}
	all, _ := selector.Requirements()
	return all, nil
}

func (p *permissions) rules(ctx context.Context, o *authorizationv1.SelfSubjectRulesReview) error {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return apierrors.NewBadRequest("no user present on request")
	}
	if o.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	resources, paths, incomplete, err := p.resolver.RulesFor(ctx, u, o.Spec.Namespace)
	o.Status = authorizationv1.SubjectRulesReviewStatus{
		Incomplete: incomplete, ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	for _, r := range resources {
		o.Status.ResourceRules = append(o.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: r.GetVerbs(), APIGroups: r.GetAPIGroups(), Resources: r.GetResources(), ResourceNames: r.GetResourceNames(),
		})
	}
	for _, r := range paths {
		o.Status.NonResourceRules = append(o.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: r.GetVerbs(), NonResourceURLs: r.GetNonResourceURLs(),
		})
	}
	if err != nil {
		o.Status.EvaluationError = err.Error()
	}
	return nil
}
