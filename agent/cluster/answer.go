package cluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// ask makes a request, whose answer goes into into. Any JSON is an object of any kind with nothing in it, and what says
// that it is of another kind leaves into as it was: an answer counts only as what was asked for. A key without a name
// is of an object whose name the server gives.
func ask(ctx context.Context, r *rest.Request, key types.NamespacedName, into runtime.Object) error {
	if err := r.Do(ctx).Into(into); err != nil {
		return err
	}
	got, is := into.(Object)
	if !is {
		return nil
	}
	named := got.GetName() != "" && (got.GetName() == key.Name || key.Name == "")
	if !named || got.GetNamespace() != key.Namespace || got.GetUID() == "" {
		// The server is there, and its other answers may be good.
		return apierrors.NewInternalError(fmt.Errorf("asked for %q in namespace %q, the server answers with %q in namespace %q, UID %q",
			key.Name, key.Namespace, clip(got.GetName()), clip(got.GetNamespace()), clip(string(got.GetUID()))))
	}
	return nil
}
