package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// given is what the server gives to every plugin.
type given struct {
	client     kubernetes.Interface
	informers  informers.SharedInformerFactory
	authorizer authorizer.UnconditionalAuthorizer
	mapper     meta.RESTMapper
}

// checks are what a plugin does.
type checks struct {
	// operations and resources (RESOURCE[/SUBRESOURCE][.GROUP], * for all) are what it is about.
	operations []admission.Operation
	resources  []string
	// synced tells that the informers know what it decides by.
	synced []cache.InformerSynced
	// admit changes the object or refuses it, validate only refuses it, after all changes. Either may be nil.
	admit, validate func(context.Context, admission.Attributes) error
}

// register makes a plugin of the library's kind of a row.
func register(plugins *admission.Plugins, r row) {
	plugins.Register(r.name, func(io.Reader) (admission.Interface, error) {
		return &plugin{name: r.name, new: r.new}, nil
	})
}

// plugin is what the library runs, whatever its checks are.
type plugin struct {
	name   string
	new    func(given) (checks, error)
	given  given
	checks checks
}

func (p *plugin) SetExternalKubeClientSet(c kubernetes.Interface) { p.given.client = c }
func (p *plugin) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	p.given.informers = f
}

func (p *plugin) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	p.given.authorizer = a
}
func (p *plugin) SetRESTMapper(m meta.RESTMapper) { p.given.mapper = m }

// ValidateInitialization makes the checks, once all is given.
func (p *plugin) ValidateInitialization() error {
	if p.given.client == nil || p.given.informers == nil || p.given.authorizer == nil {
		return fmt.Errorf("make admission plugin %s: it has no client, informers or authorizer", p.name)
	}
	var err error
	if p.checks, err = p.new(p.given); err != nil {
		return fmt.Errorf("make admission plugin %s: %w", p.name, err)
	}
	return nil
}

// Handles tells whether the plugin is about an operation.
func (p *plugin) Handles(o admission.Operation) bool { return slices.Contains(p.checks.operations, o) }

// Admit changes an object, or refuses it.
func (p *plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return p.do(ctx, a, p.checks.admit)
}

// Validate refuses an object, or not.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return p.do(ctx, a, p.checks.validate)
}

// syncTimeout is how long a request waits, at most, for a server that has just started to know what it decides by.
const syncTimeout = 10 * time.Second

func (p *plugin) do(ctx context.Context, a admission.Attributes, check func(context.Context, admission.Attributes) error) error {
	if check == nil || !slices.Contains(p.checks.resources, "*") && !slices.Contains(p.checks.resources, resourceOf(a)) {
		return nil
	}
	if slices.ContainsFunc(p.checks.synced, func(synced cache.InformerSynced) bool { return !synced() }) {
		ctx, cancel := context.WithTimeout(ctx, syncTimeout)
		defer cancel()
		if !cache.WaitForCacheSync(ctx.Done(), p.checks.synced...) {
			return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
		}
	}
	return check(ctx, a)
}

// resourceOf is RESOURCE[/SUBRESOURCE][.GROUP] of a request.
func resourceOf(a admission.Attributes) string {
	text := a.GetResource().Resource
	if s := a.GetSubresource(); s != "" {
		text += "/" + s
	}
	if g := a.GetResource().Group; g != "" {
		text += "." + g
	}
	return text
}

// on makes a check of one that is about the object of a request, of the type that its resource has.
func on[T runtime.Object](check func(context.Context, admission.Attributes, T) error) func(context.Context, admission.Attributes) error {
	return func(ctx context.Context, a admission.Attributes) error {
		o, ok := a.GetObject().(T)
		if !ok {
			return wrongType(a, a.GetObject())
		}
		return check(ctx, a, o)
	}
}

// onChange is on, with the object as it was.
func onChange[T runtime.Object](check func(_ context.Context, _ admission.Attributes, o, old T) error) func(context.Context, admission.Attributes) error {
	return func(ctx context.Context, a admission.Attributes) error {
		o, ok := a.GetObject().(T)
		if !ok {
			return wrongType(a, a.GetObject())
		}
		old, ok := a.GetOldObject().(T)
		if !ok {
			return wrongType(a, a.GetOldObject())
		}
		return check(ctx, a, o, old)
	}
}

// wrongType refuses what cannot be looked into: to let it pass would be to fail open.
func wrongType(a admission.Attributes, o runtime.Object) error {
	return admission.NewForbidden(a, fmt.Errorf("the object of %s is a %T, which is not its type", resourceOf(a), o))
}

func forbid(a admission.Attributes, format string, args ...any) error {
	return admission.NewForbidden(a, fmt.Errorf(format, args...))
}

// The operations of most plugins.
func onCreate() []admission.Operation { return []admission.Operation{admission.Create} }
func onUpdate() []admission.Operation { return []admission.Operation{admission.Update} }
func onWrite() []admission.Operation {
	return []admission.Operation{admission.Create, admission.Update}
}
