package apiserver

import (
	"fmt"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/dynamic"
)

// admit makes what looks at objects before they are stored, and may change or refuse them.
func (s *shared) admit() error {
	o := genericoptions.NewAdmissionOptions()
	dyn, err := dynamic.NewForConfig(s.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("make dynamic client: %w", err)
	}
	if err := o.ApplyTo(s.config, s.informers, s.client, dyn, s.config.FeatureGate, s.config.EffectiveVersion); err != nil {
		return fmt.Errorf("make admission: %w", err)
	}
	return nil
}
