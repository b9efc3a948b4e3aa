package apiserver

import (
	"fmt"

	genericadmission "k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"

	"github.com/berth-node/berth/control/apiserver/admission"
	"github.com/berth-node/berth/control/apiserver/auth"
)

// reachWebhooks is how webhooks of admission and of conversions are reached, whose answers have a bound.
func (s *shared) reachWebhooks() webhook.AuthenticationInfoResolverWrapper {
	self := s.config.LoopbackClientConfig
	return auth.BoundWebhooks(webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, self, s.config.TracerProvider), self)
}

// admit makes what looks at objects before they are stored, and may change or refuse them.
func (s *shared) admit() error {
	o := admission.Options{Informers: s.informers}
	plugins, err := admission.Plugins(o)
	if err != nil {
		return fmt.Errorf("make admission: %w", err)
	}
	dyn, err := dynamic.NewForConfig(s.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("make dynamic client: %w", err)
	}
	webhooks := webhookinit.NewPluginInitializer(s.reachWebhooks(), s.resolver)
	c := s.config
	err = (&genericoptions.AdmissionOptions{
		Plugins: plugins, RecommendedPluginOrder: admission.RecommendedOrder(), DefaultOffPlugins: admission.DefaultOff(),
		Decorators: genericadmission.Decorators{genericadmission.DecoratorFunc(admissionmetrics.WithControllerMetrics)},
	}).ApplyTo(c, s.informers, s.client, dyn, c.FeatureGate, c.EffectiveVersion, append(genericadmission.PluginInitializers{webhooks}, admission.Initializers(o)...)...)
	if err != nil {
		return fmt.Errorf("make admission: %w", err)
	}
	return nil
}
