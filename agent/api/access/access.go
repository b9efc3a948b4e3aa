// Package access says who a request to the agent's API comes from, and whether it may do what it asks for. Its terms
// are kubelet's: a request wants a verb on a subresource of the node, so that rules that were written for kubelets hold
// here.
package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// User is who asks.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// The names that requests without credentials go by, and the group of all that have shown some.
const (
	Anonymous            = "system:anonymous"
	UnauthenticatedGroup = "system:unauthenticated"
	AuthenticatedGroup   = "system:authenticated"
)

// Attributes are what a request wants.
type Attributes struct {
	Verb string
	// Subresources of the node, each of which is enough. The first is the narrowest.
	Subresources []string
}

// Authenticator finds out who a request comes from. It returns nil when the request shows nothing that it knows of, and
// an error when what the request shows is not good.
type Authenticator interface {
	Authenticate(*http.Request) (*User, error)
}

// Authorizer says whether a user may do something, and if not, why.
type Authorizer interface {
	Authorize(context.Context, *User, Attributes) (bool, string, error)
}

// Routes is a handler that knows what a request for it wants, by the route that it would be served by. A path alone
// tells too little: names in it are others' to choose.
type Routes interface {
	http.Handler
	Wants(*http.Request) Attributes
}

// Verb is what a method is called in rules, "" where no rule can name it.
func Verb(method string) string { return verbs[method] }

var verbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update",
	http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Guard lets requests pass that are allowed.
type Guard struct {
	Authenticators []Authenticator
	Authorizer     Authorizer
	AllowAnonymous bool // requests that show nothing are those of system:anonymous
	Next           Routes
	Log            *slog.Logger
}

func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if foreign(r) {
		g.Log.Info("request of a browser for another site's page is refused", "from", r.RemoteAddr, "path", r.URL.Path,
			"origin", r.Header.Get("Origin"))
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "Forbidden (the page that asks for it is of another origin)")
		return
	}
	user, err := g.authenticate(r)
	if err != nil || user == nil {
		g.Log.Debug("request without good credentials", "from", r.RemoteAddr, "path", r.URL.Path, "error", err)
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	want := g.Next.Wants(r)
	ok, why, err := g.Authorizer.Authorize(r.Context(), user, want)
	switch {
	case err != nil:
		g.Log.Warn("request cannot be authorized", "user", user.Name, "path", r.URL.Path, "error", err)
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError,
			fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Name, want.Verb,
				want.Subresources))
	case !ok:
		g.Log.Info("request refused", "user", user.Name, "verb", want.Verb, "path", r.URL.Path, "reason", why)
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Name, want.Verb,
				want.Subresources))
	default:
		g.Next.ServeHTTP(w, r)
	}
}

func (g *Guard) authenticate(r *http.Request) (*User, error) {
	var errs []error
	for _, a := range g.Authenticators {
		user, err := a.Authenticate(r)
		if user != nil {
			if known := user.Name != Anonymous && !slices.Contains(user.Groups, UnauthenticatedGroup); known &&
				!slices.Contains(user.Groups, AuthenticatedGroup) {
				user.Groups = append(slices.Clone(user.Groups), AuthenticatedGroup)
			}
			return user, nil
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err // who shows bad credentials is not taken for somebody else
	}
	if g.AllowAnonymous {
		return &User{Name: Anonymous, Groups: []string{UnauthenticatedGroup}}, nil
	}
	return nil, nil
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Message: message, Reason: reason, Code: int32(code),
	})
}

// AlwaysAllow lets everybody do everything who is somebody.
type AlwaysAllow struct{}

// Authorize implements [Authorizer].
func (AlwaysAllow) Authorize(context.Context, *User, Attributes) (bool, string, error) {
	return true, "", nil
}
