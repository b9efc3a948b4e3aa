package apiserver

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
)

// encrypt has objects stored as the encryption configuration says, and the file read again when it changes.
func (s *shared) encrypt(ctx context.Context) error {
	file := s.options.EncryptionConfiguration
	if file == "" {
		return nil
	}
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, file, true, s.config.APIServerID)
	if err != nil {
		return fmt.Errorf("read encryption configuration %s: %w", file, err)
	}
	if len(c.HealthChecks) != 1 {
		return fmt.Errorf("read encryption configuration %s: a reloaded configuration has %d health checks, not one", file, len(c.HealthChecks))
	}
	stop := func() {}
	transformers := encryptionconfig.NewDynamicTransformers(c.Transformers, c.HealthChecks[0], stop, c.KMSCloseGracePeriod)
	s.config.AddHealthChecks(transformers)
	s.config.ResourceTransformers, s.store.transformers = transformers, transformers
	reload := controller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller", file, transformers,
		c.EncryptionFileContentHash, s.config.APIServerID)
	go reload.Run(ctx)
	return nil
}

// healthCheck asks the store.
func healthCheck(s *store) func(*http.Request) error {
	return func(r *http.Request) error { return s.check(r.Context()) }
}
