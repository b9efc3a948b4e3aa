package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/value"
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
	if err := s.readable(ctx, c.Transformers[secretResource()]); err != nil {
		return fmt.Errorf("read encryption configuration %s: %w", file, err)
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

func secretResource() schema.GroupResource { return schema.GroupResource{Resource: "secrets"} }

const (
	// someSecrets is how many Secrets are tried: one may be damaged itself.
	someSecrets = 8
	// readTimeout bounds how long that may take. A store that does not answer is waited for elsewhere.
	readTimeout = 5 * time.Second
	// Values begin so that are encrypted, and those by a service of keys, which need not be there yet.
	encrypted, byService = "k8s:enc:", "k8s:enc:kms:"
)

// readable says whether the keys are those that Secrets are stored by. A letter of a key that is another one makes
// another key: without a word the server would encrypt with it what nobody reads when the right one is put back.
func (s *shared) readable(ctx context.Context, by value.Transformer) error {
	if by == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	got, err := s.options.Etcd.Get(ctx, keyPrefix+"/secrets/", clientv3.WithPrefix(), clientv3.WithLimit(someSecrets))
	if err != nil {
		s.options.Log.Warn("keys of Secrets are not tried", "error", err)
		return nil
	}
	tried := 0
	for _, kv := range got.Kvs {
		if !bytes.HasPrefix(kv.Value, []byte(encrypted)) || bytes.HasPrefix(kv.Value, []byte(byService)) {
			continue
		}
		if _, _, err = by.TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key)); err == nil {
			return nil
		}
		tried++
	}
	if tried == 0 {
		return nil
	}
	return fmt.Errorf("its keys are not those that Secrets are stored by: none of %d can be read (%w); put back the file that they were stored by", tried, err)
}

// healthCheck asks the store.
func healthCheck(s *store) func(*http.Request) error {
	return func(r *http.Request) error { return s.check(r.Context()) }
}
