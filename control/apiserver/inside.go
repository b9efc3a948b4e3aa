package apiserver

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
)

// Inside is what who runs in the same process has of the server: the way in with all rights, what it watches anyway,
// and the authorities of the cluster, which tell when they are others.
type Inside struct {
	Config    *rest.Config
	Informers informers.SharedInformerFactory
	ClusterCA *dynamiccertificates.DynamicFileCAContent
	// SecretToken makes the token of a service account that a secret keeps.
	SecretToken func(account *corev1.ServiceAccount, secret string) (string, error)
}

// Inside is for controllers and the scheduler.
func (s *Server) Inside() Inside {
	config := rest.CopyConfig(s.shared.config.LoopbackClientConfig)
	infos := genericapiserver.NewRequestInfoResolver(s.shared.config)
	config.Wrap(func(other http.RoundTripper) http.RoundTripper {
		return &shortcut{s.front.GenericAPIServer.Handler, s.shared.began, infos, s.shared.config.LongRunningFunc, other}
	})
	return Inside{config, s.shared.informers, s.shared.clientCA, s.shared.auth.SecretToken}
}

// Began is closed when the server answers and the cluster has what it begins with.
func (s *Server) Began() <-chan struct{} { return s.shared.began }
