package plugin

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Read is what a plugin wrote in an earlier phase of this cycle.
func Read[T fwk.StateData](state fwk.CycleState, key fwk.StateKey) (T, error) {
	var none T
	data, err := state.Read(key)
	if err != nil {
		return none, fmt.Errorf("read %s: %w", key, err)
	}
	t, ok := data.(T)
	if !ok {
		return none, fmt.Errorf("read %s: %T is no %T", key, data, none)
	}
	return t, nil
}

// Args is a copy of a plugin's arguments, to be given defaults; an empty one if there are none.
func Args[T any, P interface {
	*T
	runtime.Object
}](o runtime.Object,
) (P, error) {
	if o == nil {
		return new(T), nil
	}
	p, ok := o.(P)
	if !ok {
		return nil, fmt.Errorf("read arguments: %T is no %T", o, p)
	}
	if p == nil {
		return new(T), nil
	}
	return p.DeepCopyObject().(P), nil
}
