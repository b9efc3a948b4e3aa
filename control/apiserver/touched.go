package apiserver

import (
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// touched says that somebody has written what is costly to look after: the roles of the cluster, their bindings,
// priority levels and flow schemas, some 200 objects. Informers hand on all they have every ten minutes, too, so that
// nothing stays wrong for longer that was missed.
type touched struct{ yes atomic.Bool }

// listen has the informers of those tell, which the server has anyway. It begins with yes: each object is new to them.
func (t *touched) listen(from informers.SharedInformerFactory) error {
	roles, flows := from.Rbac().V1(), from.Flowcontrol().V1()
	told := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { t.yes.Store(true) }, UpdateFunc: func(any, any) { t.yes.Store(true) }, DeleteFunc: func(any) { t.yes.Store(true) },
	}
	for _, informer := range []cache.SharedIndexInformer{
		roles.ClusterRoles().Informer(), roles.ClusterRoleBindings().Informer(), roles.Roles().Informer(), roles.RoleBindings().Informer(),
		flows.PriorityLevelConfigurations().Informer(), flows.FlowSchemas().Informer(),
	} {
		if _, err := informer.AddEventHandler(told); err != nil {
			return fmt.Errorf("hear of roles and flows: %w", err)
		}
	}
	return nil
}

// do does what there is to do: all if something was written since it was done last, or with an error.
func (t *touched) do(ensure func(same bool) error) error {
	all := t.yes.Swap(false) // what is written from now on is looked at the next time
	err := ensure(!all)
	if err != nil && all {
		t.yes.Store(true)
	}
	return err
}
